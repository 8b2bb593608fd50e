"""What the names of this process's metrics begin with; kept in the environment, so that child processes share it."""

from __future__ import annotations

from monolith import environment
from monolith.observe._metric_names import require_text

METRIC_PREFIX_VARIABLE = "MONOLITH_METRIC_PREFIX"
DEFAULT_METRIC_PREFIX = "monolith.training"


def set_metric_prefix(prefix: str) -> None:
    """Makes `prefix` the beginning of metric names, here and in processes started from now on."""
    require_text("metric prefix", prefix, "monolith.training.ranker")
    environment.put(METRIC_PREFIX_VARIABLE, prefix)


def get_metric_prefix() -> str:
    """The prefix that was set, else ``monolith.training``."""
    return environment.get(METRIC_PREFIX_VARIABLE) or DEFAULT_METRIC_PREFIX
