"""Names of metrics, and how they are spelt on Prometheus, which knows letters, digits and underscores only."""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache

_FOREIGN = re.compile(r"[^a-zA-Z0-9_]")


class MetricKind(StrEnum):
    """What an emitted value means."""

    COUNTER = "counter"
    """Added to what was there; never goes down."""
    TIMER = "timer"
    """One of many measurements: a duration, a size, a rate."""
    GAUGE = "gauge"
    """Replaces what was there."""


@lru_cache(maxsize=4096)
def exposition_name(name: str) -> str:
    """A metric or tag name with every foreign character, dots first of all, as an underscore."""
    spelt = _FOREIGN.sub("_", name)
    return f"_{spelt}" if spelt[:1].isdigit() else spelt


def family_name(name: str, kind: MetricKind) -> str:
    """The name of the Prometheus family of a metric; a counter's samples end in ``_total``, its family does not."""
    spelt = exposition_name(name)
    return spelt.removesuffix("_total") if kind is MetricKind.COUNTER else spelt


def sample_names(name: str, kind: MetricKind) -> tuple[str, ...]:
    """Every name that a metric takes on Prometheus, its family's included."""
    family = family_name(name, kind)
    suffixes = {
        MetricKind.COUNTER: ("", "_total"),
        MetricKind.TIMER: ("", "_bucket", "_count", "_sum"),
        MetricKind.GAUGE: ("",),
    }
    return tuple(family + suffix for suffix in suffixes[kind])


def require_text(subject: str, value: object, example: str) -> None:
    """Refuses what is not a text, or an empty one."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{subject} must be a text like {example!r}, got {value!r}")
