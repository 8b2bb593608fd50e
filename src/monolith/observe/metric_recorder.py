"""The metrics of a process, in memory: emitted by clients, read by tests, scraped by Prometheus.

A metric has a name, a kind and, for each set of tags, a value. Names are kept as they were given; the recorder only
rejects those that Prometheus could not distinguish.
"""

from __future__ import annotations

import math
import re
import threading
from bisect import bisect_left
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

from monolith import environment
from monolith.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

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


_Key: TypeAlias = "tuple[tuple[str, str], ...]"
"""Tags in the order of their names."""

DEFAULT_TIMER_BOUNDS = tuple(float(f"{digit}e{exponent}") for exponent in range(-4, 8) for digit in (1, 3))
"""Upper bounds of a timer's buckets: 0.0001 to 3e7 in steps of about three, for seconds, microseconds and rates."""


@dataclass(frozen=True, slots=True)
class TimerReading:
    """The measurements of a timer so far."""

    count: int
    sum: float
    minimum: float
    maximum: float
    buckets: tuple[tuple[float, int], ...]
    """(upper bound, measurements up to and including it), ascending; the last bound is infinite."""

    @property
    def mean(self) -> float:
        """Sum divided by count."""
        return self.sum / self.count


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One value of one metric at one point in time."""

    name: str
    kind: MetricKind
    tags: dict[str, str]
    value: float | TimerReading


@dataclass(slots=True)
class _Timer:
    counts: list[int]
    sum: float = 0.0
    minimum: float = math.inf
    maximum: float = -math.inf


@dataclass(slots=True)
class _Metric:
    kind: MetricKind
    numbers: dict[_Key, float] = field(default_factory=dict)
    timers: dict[_Key, _Timer] = field(default_factory=dict)


class MetricRecorder:
    """Keeps metrics. Thread-safe; one lock guards everything.

    Args:
        timer_bounds: Ascending upper bounds of the buckets that timers count into.
    """

    def __init__(self, *, timer_bounds: Sequence[float] = DEFAULT_TIMER_BOUNDS) -> None:
        bounds = [float(bound) for bound in timer_bounds]
        if not all(math.isfinite(bound) for bound in bounds) or sorted(set(bounds)) != bounds:
            raise ValueError(f"MetricRecorder: timer_bounds must be finite and ascending, got {timer_bounds!r}")
        self._bounds = bounds
        self._lock = threading.Lock()
        self._metrics: dict[str, _Metric] = {}
        self._owners: dict[str, str] = {}
        """Name on Prometheus -> metric that uses it."""

    def add(self, name: str, value: float = 1, tags: Mapping[str, object] | None = None) -> None:
        """Adds to a counter, which starts at 0."""
        self._add(name, _key(name, tags), value)

    def adder(self, name: str, tags: Mapping[str, object] | None = None) -> Callable[[float], None]:
        """Returns a function like `add` for a frequently used counter: name and tags are checked only once, here."""
        return partial(self._add, name, _key(name, tags))

    def measure(self, name: str, value: float, tags: Mapping[str, object] | None = None) -> None:
        """Adds a measurement to a timer."""
        self._measure(name, _timer_key(name, tags), value)

    def measurer(self, name: str, tags: Mapping[str, object] | None = None) -> Callable[[float], None]:
        """Returns a function like `measure` for a frequently used timer: name and tags are checked only once, here."""
        return partial(self._measure, name, _timer_key(name, tags))

    def set(self, name: str, value: float, tags: Mapping[str, object] | None = None) -> None:
        """Replaces the value of a gauge; NaN and infinities are values too."""
        number = _number(name, value)
        key = _key(name, tags)
        with self._lock:
            self._metric(name, MetricKind.GAUGE).numbers[key] = number

    def read(self) -> list[MetricSample]:
        """Returns all values, consistently, by name and tags."""
        with self._lock:
            samples = [
                MetricSample(name, metric.kind, dict(key), self._value(metric, key))
                for name, metric in self._metrics.items()
                for key in (metric.numbers or metric.timers)
            ]
        return sorted(samples, key=lambda reading: (reading.name, sorted(reading.tags.items())))

    def counter(self, name: str, tags: Mapping[str, object] | None = None) -> float:
        """Returns the value of a counter with exactly these tags."""
        with self._lock:
            return self._find(name, MetricKind.COUNTER, tags).numbers[_key(name, tags)]

    def gauge(self, name: str, tags: Mapping[str, object] | None = None) -> float:
        """Returns the value of a gauge with exactly these tags."""
        with self._lock:
            return self._find(name, MetricKind.GAUGE, tags).numbers[_key(name, tags)]

    def timer(self, name: str, tags: Mapping[str, object] | None = None) -> TimerReading:
        """Returns the measurements of a timer with exactly these tags."""
        with self._lock:
            return self._reading(self._find(name, MetricKind.TIMER, tags).timers[_key(name, tags)])

    def clear(self) -> None:
        """Removes all metrics."""
        with self._lock:
            self._metrics.clear()
            self._owners.clear()

    def _add(self, name: str, key: _Key, value: float) -> None:
        number = _number(name, value)
        if not 0 <= number < math.inf:
            raise ValueError(f"counter {name!r}: value must be finite and >= 0, got {value!r}; use emit_store")
        with self._lock:
            numbers = self._metric(name, MetricKind.COUNTER).numbers
            numbers[key] = numbers.get(key, 0.0) + number

    def _measure(self, name: str, key: _Key, value: float) -> None:
        number = _number(name, value)
        if not math.isfinite(number):
            raise ValueError(f"timer {name!r}: value must be finite, got {value!r}")
        with self._lock:
            timers = self._metric(name, MetricKind.TIMER).timers
            timer = timers.get(key)
            if timer is None:
                timer = timers[key] = _Timer([0] * (len(self._bounds) + 1))
            timer.counts[bisect_left(self._bounds, number)] += 1
            timer.sum += number
            timer.minimum = min(timer.minimum, number)
            timer.maximum = max(timer.maximum, number)

    def _metric(self, name: str, kind: MetricKind) -> _Metric:
        """Returns the metric of this name, created if new. REQUIRES: the lock is held."""
        metric = self._metrics.get(name)
        if metric is not None:
            if metric.kind is not kind:
                raise ValueError(f"metric {name!r} is a {metric.kind}; it cannot be a {kind} too, choose another name")
            return metric
        taken = sample_names(name, kind)
        for sample in taken:
            if sample in self._owners:
                raise ValueError(
                    f"metric {name!r} ({kind}) would share the name {sample!r} on Prometheus with metric "
                    f"{self._owners[sample]!r}; choose another name"
                )
        self._owners.update(dict.fromkeys(taken, name))
        metric = self._metrics[name] = _Metric(kind)
        return metric

    def _find(self, name: str, kind: MetricKind, tags: Mapping[str, object] | None) -> _Metric:
        """Returns the metric that has a value for these tags. REQUIRES: the lock is held."""
        key = _key(name, tags)
        metric = self._metrics.get(name)
        if metric is not None and metric.kind is kind and (key in metric.numbers or key in metric.timers):
            return metric
        known = [
            f"{known.kind} {known_name!r} {dict(known_key)}"
            for known_name, known in self._metrics.items()
            for known_key in (known.numbers or known.timers)
        ]
        raise NotFoundError(f"no {kind} {name!r} with tags {dict(key)}; there are: {', '.join(known) or 'none'}")

    def _value(self, metric: _Metric, key: _Key) -> float | TimerReading:
        return self._reading(metric.timers[key]) if metric.kind is MetricKind.TIMER else metric.numbers[key]

    def _reading(self, timer: _Timer) -> TimerReading:
        buckets = tuple(zip([*self._bounds, math.inf], accumulate(timer.counts), strict=True))
        return TimerReading(sum(timer.counts), timer.sum, timer.minimum, timer.maximum, buckets)


def _number(name: str, value: Any) -> float:
    if type(value) is float:
        return value
    if isinstance(value, str | bytes):
        raise TypeError(f"metric {name!r}: value must be a number, got {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"metric {name!r}: value must be a number, got {value!r}") from error


def _key(name: str, tags: Mapping[str, object] | None) -> _Key:
    require_text("metric name", name, "run_steps.all")
    if not tags:
        return ()
    labels = {exposition_name(tag) for tag in tags}
    if len(labels) < len(tags) or any(not label or label.startswith("__") for label in labels):
        raise ValueError(
            f"metric {name!r}: tag names must be texts that differ in their letters and digits and do not begin with "
            f"'__', got {sorted(tags)}"
        )
    return tuple(sorted((tag, str(value)) for tag, value in tags.items()))


def _timer_key(name: str, tags: Mapping[str, object] | None) -> _Key:
    key = _key(name, tags)
    if any(tag == "le" for tag, _ in key):
        raise ValueError(f"timer {name!r}: tag 'le' is the name of a bucket's bound; use another name")
    return key


_PROCESS_RECORDER = MetricRecorder()


def process_recorder() -> MetricRecorder:
    """Returns the default recorder of this process's clients."""
    return _PROCESS_RECORDER
