"""The tables and figures of a study, computed: run records in, frames out. Nothing here draws.

Each frame has a column ``runs``: the run folders, below the study's, from which the numbers of that row come.
"""
