"""First part of metric names: of a process and its children, by the environment; of a run, by a context."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from monolith import environment
from monolith.observe._metric_names import require_text

if TYPE_CHECKING:
    from collections.abc import Iterator

METRIC_PREFIX_VARIABLE = "MONOLITH_METRIC_PREFIX"
DEFAULT_METRIC_PREFIX = "monolith.training"
_NAME: ContextVar[str | None] = ContextVar("monolith_metric_name", default=None)


def set_metric_prefix(prefix: str) -> None:
    """Sets the prefix of metric names, here and in processes started from now on."""
    require_text("metric prefix", prefix, "monolith.training.ranker")
    environment.put(METRIC_PREFIX_VARIABLE, prefix)


def get_metric_prefix() -> str:
    """Returns the prefix that was set, else ``monolith.training``; inside `use_metric_name` followed by that name."""
    names = (environment.get(METRIC_PREFIX_VARIABLE) or DEFAULT_METRIC_PREFIX, _NAME.get())
    return ".".join(name for name in names if name)


@contextmanager
def use_metric_name(name: str | None) -> Iterator[None]:
    """Adds a name after the prefix of metric names, in this context only; None: adds none."""
    if name is not None:
        require_text("metric name", name, "ranker")
    token = _NAME.set(name)
    try:
        yield
    finally:
        _NAME.reset(token)
