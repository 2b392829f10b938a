"""Statistics of pruning studies, on arrays alone: what is kept, how sure that is, which differences are real."""

from regrow.stats.agreement import cohens_kappa
from regrow.stats.bootstrap import both_bootstraps, paired_bootstrap
from regrow.stats.decisions import holm, holm_by_family, mcnemar, smallest_detectable_difference, tost
from regrow.stats.intervals import mean_interval, perplexity_interval, wilson
from regrow.stats.ranks import kendalls_w
from regrow.stats.retention import capped_mean, chance_corrected, retention, undefined_reason, worst_case
from regrow.stats.transitions import fates, transitions

__all__ = [
    "both_bootstraps",
    "capped_mean",
    "chance_corrected",
    "cohens_kappa",
    "fates",
    "holm",
    "holm_by_family",
    "kendalls_w",
    "mcnemar",
    "mean_interval",
    "paired_bootstrap",
    "perplexity_interval",
    "retention",
    "smallest_detectable_difference",
    "tost",
    "transitions",
    "undefined_reason",
    "wilson",
    "worst_case",
]
