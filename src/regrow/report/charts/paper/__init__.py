"""The figures of a study's report, drawn from the frames of :mod:`regrow.report.paper`."""
