"""Statistics of pruning studies, on arrays alone: what is kept, how sure that is, which differences are real."""
