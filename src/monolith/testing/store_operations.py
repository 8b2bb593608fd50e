"""What a program for `monolith.testing.store_contract.StoreContract` is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias


class SlotId(NamedTuple):
    """An id, any int64, of a slot that shares the table with others (`TableConfig.wide_slots`)."""

    slot: int
    id: int


Id: TypeAlias = int | SlotId
"""An id by itself, or that of a slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Ids per table, in table order; gradients and per-id times are drawn from the seed."""

    ids: tuple[tuple[Id, ...], ...]
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A worker reads a batch for training and leaves it open: others may come in between."""

    batch: Batch
    worker: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """A worker applies the batches it has open as one update; then once more when `retry` is set."""

    worker: int = 0
    time: int = 0
    times_per_id: bool = False
    scale: float = 1.0
    retry: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """`Read` of some batches and `Apply` of all that are open."""

    batches: tuple[Batch, ...]
    worker: int = 0
    time: int = 0
    times_per_id: bool = False
    scale: float = 1.0
    retry: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """A worker drops the batches it has open."""

    worker: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A worker pushes a batch that names a push before it that is not the last one: one got lost."""

    batch: Batch
    worker: int = 0
    ahead: bool = True
    """Whether the push it names is later or earlier than the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """A worker joins again; what it had open is dropped, and its old handle is tried in vain."""

    worker: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Overwrite or add to the weights of distinct ids of one table."""

    table: int
    ids: tuple[Id, ...]
    seed: int = 0
    time: int = 0
    add: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """A worker removes expired rows; -1 is each table's newest time."""

    now: int
    worker: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch:
    """Some ids of one table count as changed."""

    table: int
    ids: tuple[Id, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Erase:
    """Some ids of one table are removed, with what admission has counted for them."""

    table: int
    ids: tuple[Id, ...]


BesideCut: TypeAlias = Read | Apply | Train | Discard | Gap | Restart | Assign | Evict | Touch | Erase
"""What may happen while a cut is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenReader:
    """A named reader begins to follow the changes, or goes on if it is there."""

    name: str
    at: Literal["now", "cut", "beginning"] = "now"
    """Where it begins: here, at the mark of a cut, or before everything."""
    meanwhile: tuple[BesideCut, ...] = ()
    """Between the cut and the opening."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """A reader, if it is open, reads what has changed: a copy that is kept by changes alone is like the whole."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseReader:
    """A reader, if it is open, ends."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareAll:
    """Compare every row, state, time and stamp through a cut, and what changed since the mark of an open reader."""

    since: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reload:
    """Cut, change the store behind the cut's back, and go on from the cut, in a new store or in the same one."""

    by: Literal["blocks", "files"] = "blocks"
    in_place: bool = False
    meanwhile: tuple[BesideCut, ...] = ()


Operation: TypeAlias = BesideCut | OpenReader | Follow | CloseReader | CompareAll | Reload
