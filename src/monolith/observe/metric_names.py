"""Names of metrics, and their spelling on Prometheus, which allows letters, digits and underscores only."""

from __future__ import annotations

import re
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING

from monolith import environment

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOREIGN = re.compile(r"[^a-zA-Z0-9_]")


class MetricKind(StrEnum):
    """Meaning of an emitted value."""

    COUNTER = "counter"
    """Added to the previous value; never decreases."""
    TIMER = "timer"
    """One of many measurements: a duration, a size, a rate."""
    GAUGE = "gauge"
    """Replaces the previous value."""


@lru_cache(maxsize=4096)
def exposition_name(name: str) -> str:
    """Returns a metric or tag name with every other character, such as dots, replaced by an underscore."""
    spelt = _FOREIGN.sub("_", name)
    return f"_{spelt}" if spelt[:1].isdigit() else spelt


def family_name(name: str, kind: MetricKind) -> str:
    """Returns the name of a metric's Prometheus family; a counter's samples end in ``_total``, its family does not."""
    spelt = exposition_name(name)
    return spelt.removesuffix("_total") if kind is MetricKind.COUNTER else spelt


def sample_names(name: str, kind: MetricKind) -> tuple[str, ...]:
    """Returns every name that a metric uses on Prometheus, its family's included."""
    family = family_name(name, kind)
    suffixes = {
        MetricKind.COUNTER: ("", "_total"),
        MetricKind.TIMER: ("", "_bucket", "_count", "_sum"),
        MetricKind.GAUGE: ("",),
    }
    return tuple(family + suffix for suffix in suffixes[kind])


def require_text(subject: str, value: object, example: str) -> None:
    """Rejects anything but a non-empty text."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{subject} must be a text like {example!r}, got {value!r}")


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
