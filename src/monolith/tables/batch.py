"""A batch as a store sees it: its stamp, its plan, the rows read for it, and the update made of it.

Dims: n ids of the batch, U unique (table, id) pairs of it, T tables, V floats of the rows of the unique ids, S segments
of all tables.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from monolith import _core


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

NOTHING_APPLIED = -1
"""The last batch number of a worker without applied batches; batches count from 0."""
_NUMBERS_END = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStamp:
    """The reader of a batch, and the input position after it: the clock of a store.

    Owners of rows keep the last applied stamp of every worker: it makes a repeated push harmless, and its position is
    what a checkpoint commits and where reading resumes.
    """

    worker: int
    """Number of the reader, >= 0."""
    seq: int
    """Number of the batch of this worker, >= 0, growing; gaps are allowed (batches that were discarded)."""
    position: bytes = b""
    """Where reading resumes after this batch; opaque to the store."""
    event_time_ms: int = 0
    """Newest event that the worker has read up to this batch, Unix milliseconds."""

    def __post_init__(self) -> None:
        if not (0 <= self.worker < _NUMBERS_END and 0 <= self.seq < _NUMBERS_END):
            raise InvalidArgumentError(
                f"batch stamp: worker and seq must be >= 0, got worker {self.worker}, seq {self.seq}"
            )
        if not 0 <= self.event_time_ms < _NUMBERS_END:
            raise InvalidArgumentError(
                f"batch stamp: event_time_ms must be Unix milliseconds >= 0, got {self.event_time_ms}"
            )

    @property
    def event_time(self) -> int:
        """Newest event up to this batch, Unix seconds."""
        return self.event_time_ms // 1000


def stamps_json(stamps: Mapping[int, BatchStamp]) -> Any:
    """Returns worker -> its stamp."""
    return {
        str(worker): {
            "seq": stamp.seq,
            "position": base64.b64encode(stamp.position).decode(),
            "event_time_ms": stamp.event_time_ms,
        }
        for worker, stamp in stamps.items()
    }


def stamps_from_json(stamps: Mapping[str, Any]) -> dict[int, BatchStamp]:
    """Parses what `stamps_json` made; version 1 had the event's time in seconds."""
    return {
        int(worker): BatchStamp(
            worker=int(worker),
            seq=stamp["seq"],
            position=base64.b64decode(stamp["position"], validate=True),
            event_time_ms=stamp["event_time_ms"] if "event_time_ms" in stamp else 1000 * stamp["event_time"],
        )
        for worker, stamp in stamps.items()
    }


class Plan(Protocol):
    """The distinct ids of a batch, grouped for the engine. A pure function of the ids: making one touches no table."""

    @property
    def stamp(self) -> BatchStamp:
        """The batch this plan belongs to."""

    @property
    def unique_ids(self) -> Tensor:
        """int64 [U], bucket-major, then table; first-seen order inside a (bucket, table)."""

    @property
    def splits(self) -> Tensor:
        """int64 [buckets * T + 1]: where each (bucket, table) starts in `unique_ids`."""

    @property
    def inverse(self) -> Tensor:
        """int32 [n]: input position -> position in `unique_ids`."""

    @property
    def counts(self) -> Tensor:
        """int32 [U]: occurrences in the batch, which admission counts."""

    @property
    def tables(self) -> Tensor:
        """int64 [U]: the table of each unique id."""

    @property
    def num_values(self) -> int:
        """V: length of the flat rows and gradients."""

    @property
    def core(self) -> _core.Plan | None:
        """The plan as the core's kernels take it; None if it was made without the core."""


class Rows(Protocol):
    """The result of a read."""

    @property
    def values(self) -> Tensor:
        """float32 [V]: the row of each unique id, in plan order."""

    @property
    def seen(self) -> int:
        """The last batch of the plan's worker whose update is contained; -1: none, or the read did not require it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """How gradients are applied: one optimizer step for every id of the plans submitted together."""

    step: int
    """Global step, >= 0; schedules and batch softmax read it."""
    learning_rates: Tensor
    """float32 [S]: one per segment, tables in sorted-name order."""
    times: int | Tensor
    """Unix seconds: one number, or int64 [n] for the ids of all plans end to end."""
    previous: int
    """Number of this worker's push before this one, -1 if this is its first: it reveals a lost push. Batches that were
    discarded leave no gap."""
    scale: float = 1.0
    """Multiplies every gradient: the clip factor."""
    known_finite: bool = False
    """True: the caller checked that no gradient is NaN or infinite, and the store need not check again."""
    latest: Sequence[Tensor] | None = None
    """For each plan, float32: the rows as the worker saw them, in plan order, of the ids of those tables alone whose
    optimizers use them (`TableConfig.uses_latest`). None: they learn as if nothing had changed meanwhile."""

    def __post_init__(self) -> None:
        if self.step < 0 or self.previous < NOTHING_APPLIED:
            raise InvalidArgumentError(
                f"update: step must be >= 0 and previous >= -1, got step {self.step}, previous {self.previous}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Counts of (table, id) pairs by what an update did to them."""

    updated: int = 0
    """Rows that learned, new ones included."""
    inserted: int = 0
    """Rows that came into being."""
    filtered: int = 0
    """Ids kept out by admission."""
    skipped: int = 0
    """Ids passed over because their gradient was not finite (policy `skip`)."""
    duplicate: bool = False
    """True iff this batch had been applied before; nothing was done."""


class Pending(Protocol[T_co]):
    """A result that may still be in flight."""

    def done(self) -> bool:
        """Returns whether `result` returns without waiting."""

    def result(self, timeout_seconds: float | None = None) -> T_co:
        """Returns the result, or raises the error of the call.

        Raises:
            DeadlineExceededError: the result did not arrive within `timeout_seconds`.
        """


@dataclass(frozen=True, slots=True)
class Finished(Pending[T_co]):
    """A `Pending` whose result is available already, for engines that never wait."""

    value: T_co

    def done(self) -> bool:
        """Returns true."""
        return True

    def result(self, timeout_seconds: float | None = None) -> T_co:  # noqa: ARG002 - the signature of Pending
        """Returns the value."""
        return self.value


class FoundRows(NamedTuple):
    """Everything a table stores for some ids; torch or NumPy like the ids. Absent ids have zeros everywhere."""

    found: Any
    """bool, shape of ids."""
    weights: Any
    """float32, shape of ids + [dim]: the stored weights, before any quantiser."""
    state: Any
    """uint8, shape of ids + [state bytes]: optimizer state, segments end to end."""
    time: Any
    """int64, shape of ids: Unix seconds of the last update."""


def made_from(kind: type[T], source: object) -> T:
    """Returns a dataclass of this kind; its fields have the values of the same names in `source`."""
    return kind(**{field.name: getattr(source, field.name) for field in fields(kind)})  # type: ignore[arg-type]
