"""Replays logged requests, and compares the answers.

Only reproducible requests are compared: a request that was answered with rows or weights of a delta log, which have
changed since, is counted separately, and so is one of a version whose export or checkpoint no longer exists. The
report has the number of differing scores by version, and the largest differences.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from monolith.data import Batch, Column, DenseColumn, Floats, Ids, Ints, Parser
from monolith.errors import FailedPreconditionError
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from monolith.export import InputSpec, Signature
    from monolith.serving.request_log import LoggedRequest
    from monolith.serving.request_log.reading import LoggedExample
    from monolith.serving.skew.models import ReplayModels

MOVED_ON = "answered with rows or weights of a delta log, which no export has"
_MOST_VALUES = 8
"""Maximum number of values of a feature in the report of a difference."""


def measure_skew(
    requests: Iterable[LoggedRequest],
    models: ReplayModels,
    *,
    tolerance: float = 1e-3,
    keep: int = 10,
    on_examples: Callable[[int], object] = lambda _: None,
) -> SkewReport:
    """Replays requests and counts differing scores.

    Args:
        requests: Requests as returned by `read_requests`.
        models: Models for the replay.
        tolerance: Maximum difference of scores that count as close: rows of an export usually have lower precision than
            those of training.
        keep: Number of largest differences to keep, with their requests.
        on_examples: Called with the number of processed examples.

    Raises:
        FailedPreconditionError: the outputs of the model do not fit the log; it is another model.
    """
    if not tolerance >= 0 or math.isinf(tolerance):
        raise ValueError(f"measure_skew: tolerance must be a number >= 0, got {tolerance}")
    report = SkewReport(tolerance=tolerance)
    parsers: dict[tuple[int, str], RequestParser] = {}
    for request in requests:
        version, name = request.export, (request.export, request.signature)
        reason = MOVED_ON if request.has_moved_on else models.why_not(*name)
        if reason is not None:
            report.leave_out(reason, len(request.examples))
        else:
            if name not in parsers:
                parsers[name] = RequestParser(models.signature(*name))
            batch = parsers[name].batch([example.sample for example in request.examples])
            answer = models.predict(version, batch, request.signature)
            counted = report.versions.setdefault(version, VersionSkew(version=version, step=models.step(version)))
            counted.requests += 1
            _compare(request, batch, answer, report, keep=keep)
        on_examples(len(request.examples))
    return report


def _compare(
    request: LoggedRequest, batch: Batch, answer: Mapping[str, Tensor], report: SkewReport, *, keep: int
) -> None:
    replayed = {name: values.detach().double().numpy() for name, values in answer.items()}
    counted = report.versions[request.export]
    for row, example in enumerate(request.examples):
        again_of = {name: np.reshape(values[row] if values.ndim else values, -1) for name, values in replayed.items()}
        output, logged, again = _farthest(request, example, again_of)
        counted.examples += 1
        size = _apart(logged, again)
        counted.largest = max(counted.largest, size)
        if size == 0:
            counted.equal += 1
        elif size <= report.tolerance:
            counted.close += 1
        else:
            counted.differing += 1
        if size > 0 and keep and (len(report.differences) < keep or size > report.differences[-1].size):
            difference = Difference(
                request_id=request.request_id.decode("latin-1"),
                example=example.number,
                version=request.export,
                output=output,
                logged=logged,
                replayed=again,
                features={name: _shown(batch[name], row) for name in batch},
            )
            report.keep(difference, keep)


def _farthest(
    request: LoggedRequest, example: LoggedExample, replayed: Mapping[str, NDArray[np.float64]]
) -> tuple[str, float, float]:
    """Returns the output and the two values of an answer that differ most."""
    most: tuple[float, tuple[str, float, float]] | None = None
    for name, logged in example.outputs.items():
        again = replayed.get(name)
        if again is None or again.shape != logged.shape:
            has = "no such output" if again is None else f"{again.size} numbers"
            raise FailedPreconditionError(
                f"request {request.request_id!r}: output {name!r}: {logged.size} numbers of an example were logged, the"
                f" model has {has}; it is another model than the one that was served"
            )
        for one, other in zip(logged.tolist(), again.tolist(), strict=True):
            size = _apart(one, other)
            if most is None or size > most[0]:
                most = (size, (name, one, other))
    if most is None:
        raise FailedPreconditionError(f"request {request.request_id!r}: no output was logged")
    return most[1]


def _apart(one: float, other: float) -> float:
    """Returns the distance of two scores; NaN equals only NaN."""
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    size = abs(one - other)
    return math.inf if math.isnan(size) else size


def _shown(column: Any, row: int) -> list[Any]:
    """Returns the first values of an example."""
    begin, end = column.row_splits[row : row + 2].tolist() if isinstance(column, Ragged) else (0, None)
    values: Tensor = column.flat_values[begin:end] if isinstance(column, Ragged) else column[row].reshape(-1)
    shown: list[Any] = values[:_MOST_VALUES].tolist()
    return [*shown, "..."] if len(values) > _MOST_VALUES else shown


class RequestParser:
    """Parser of samples into batches with the columns of a signature, each of its type and shape. Thread-safe."""

    def __init__(self, signature: Signature) -> None:
        self._inputs = signature.inputs
        self._parser = Parser("example", [_column(name, spec) for name, spec in signature.inputs.items()])

    def batch(self, samples: Sequence[bytes]) -> Batch:
        """Parses samples into a batch."""
        parsed = self._parser.parse(samples)
        columns = {name: _shaped(parsed[name], spec) for name, spec in self._inputs.items()}
        return Batch(columns, num_rows=len(samples))


def _column(name: str, spec: InputSpec) -> Column:
    if spec.kind == "ids":
        return Ids(name)
    is_float = getattr(torch, spec.dtype).is_floating_point
    if spec.ragged:
        return Floats(name) if is_float else Ints(name)
    return DenseColumn(name, width=max(1, _width(spec)), dtype="float32" if is_float else "int64")


def _width(spec: InputSpec) -> int:
    return math.prod(size for size in spec.shape[1:] if size is not None)


def _shaped(values: Tensor | Ragged | list[bytes], spec: InputSpec) -> Tensor | Ragged:
    assert not isinstance(values, list)  # noqa: S101 - there is no column of texts
    dtype = getattr(torch, spec.dtype)
    if isinstance(values, Ragged):
        # Ids are lists, usually of one length, which is that of a dense column of ids.
        width = None if spec.ragged or None in spec.shape[1:] else _width(spec)
        if width is None or not bool((values.lengths() == width).all()):
            return values.with_values(values.flat_values.to(dtype))
        values = values.flat_values
    return values.to(dtype).reshape(-1, *(size if size is not None else -1 for size in spec.shape[1:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """An example with a differing answer."""

    request_id: str
    example: int
    """Index in the request."""
    version: int
    output: str
    logged: float
    """Score of the server."""
    replayed: float
    """Score of the replay."""
    features: dict[str, Any]
    """Values of the request by column."""

    @property
    def size(self) -> float:
        """Absolute difference; infinite if one of them is NaN."""
        size = abs(self.logged - self.replayed)
        return math.inf if math.isnan(size) else size


@dataclass(slots=True, kw_only=True)
class VersionSkew:
    """Counts of the examples of one version."""

    version: int
    step: int
    """Step of the run at which it was exported."""
    requests: int = 0
    examples: int = 0
    """Number of compared examples."""
    equal: int = 0
    """Examples that are bitwise equal."""
    close: int = 0
    """Examples that are not equal, but within the tolerance."""
    differing: int = 0
    """Examples beyond the tolerance."""
    largest: float = 0.0
    """Largest difference."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the counts as plain values."""
        return asdict(self) | {"largest": _plain(self.largest)}


@dataclass(slots=True, kw_only=True)
class SkewReport:
    """The result of a replay."""

    tolerance: float
    versions: dict[int, VersionSkew] = field(default_factory=dict)
    not_compared: dict[str, int] = field(default_factory=dict)
    """Reason why examples were not compared -> their number."""
    differences: list[Difference] = field(default_factory=list)
    """Largest differences, in decreasing order."""

    @property
    def examples(self) -> int:
        """Number of compared examples."""
        return sum(skew.examples for skew in self.versions.values())

    @property
    def differing(self) -> int:
        """Number of examples beyond the tolerance."""
        return sum(skew.differing for skew in self.versions.values())

    @property
    def skew(self) -> float:
        """Fraction of compared examples that differ; 0 if none was compared."""
        return self.differing / self.examples if self.examples else 0.0

    def keep(self, difference: Difference, most: int) -> None:
        """Keeps a difference if it is one of the `most` largest."""
        self.differences = heapq.nlargest(most, [*self.differences, difference], key=lambda kept: kept.size)

    def leave_out(self, reason: str, examples: int) -> None:
        """Counts examples that were not compared."""
        self.not_compared[reason] = self.not_compared.get(reason, 0) + examples

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, serializable as JSON."""
        return {
            "examples": self.examples,
            "differing": self.differing,
            "skew": self.skew,
            "tolerance": self.tolerance,
            "versions": [skew.to_dict() for _, skew in sorted(self.versions.items())],
            "not_compared": self.not_compared,
            "differences": [
                {
                    "request_id": difference.request_id,
                    "example": difference.example,
                    "version": difference.version,
                    "output": difference.output,
                    "logged": _plain(difference.logged),
                    "replayed": _plain(difference.replayed),
                    "features": difference.features,
                }
                for difference in self.differences
            ],
        }

    def __str__(self) -> str:
        lines = [
            f"version {skew.version}, step {skew.step}: {skew.examples:,} examples of {skew.requests:,} requests: "
            f"{skew.equal:,} equal, {skew.close:,} within {self.tolerance:g}, {skew.differing:,} differ"
            + (f" (largest {skew.largest:.4g})" if skew.close + skew.differing else "")
            for _, skew in sorted(self.versions.items())
        ]
        lines += [f"not compared: {count:,} examples: {reason}" for reason, count in self.not_compared.items()]
        if self.differences:
            lines.append("largest differences:")
        for difference in self.differences:
            features = ", ".join(f"{name} {values}" for name, values in difference.features.items())
            lines.append(
                f"  request {difference.request_id}, example {difference.example}: {difference.output}"
                f" {difference.logged:.6g} logged, {difference.replayed:.6g} replayed; {features}"
            )
        return "\n".join(lines) or "the log has no requests"


def _plain(number: float) -> float | None:
    """Converts NaN and infinity, which JSON does not have, to None."""
    return number if math.isfinite(number) else None
