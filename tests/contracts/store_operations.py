"""The operations of programs for `contracts.store_contract.StoreContract`."""

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
class OperationBatch:
    """Ids per table, in table order; gradients and per-id times are drawn from the seed."""

    ids: tuple[tuple[Id, ...], ...]
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A worker reads a batch for training and keeps it open: other operations may come in between."""

    batch: OperationBatch
    worker: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """A worker applies its open batches as one update; then once more when `retry` is set."""

    worker: int = 0
    time: int = 0
    times_per_id: bool = False
    scale: float = 1.0
    retry: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """`Read` of some batches and `Apply` of all open ones."""

    batches: tuple[OperationBatch, ...]
    worker: int = 0
    time: int = 0
    times_per_id: bool = False
    scale: float = 1.0
    retry: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """A worker discards its open batches."""

    worker: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A worker pushes a batch whose named predecessor is not the last push: one was lost."""

    batch: OperationBatch
    worker: int = 0
    ahead: bool = True
    """Whether the push it names is later or earlier than the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """A worker joins again; its open batches are discarded, and its old handle is rejected."""

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
    """Marks some ids of one table as changed."""

    table: int
    ids: tuple[Id, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Erase:
    """Removes some ids of one table, with their admission counts."""

    table: int
    ids: tuple[Id, ...]


BesideCut: TypeAlias = Read | Apply | Train | Discard | Gap | Restart | Assign | Evict | Touch | Erase
"""Operations that may run while a cut is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenReader:
    """A named reader begins to follow the changes, or continues if it exists."""

    name: str
    at: Literal["now", "cut", "beginning"] = "now"
    """Start position: now, the mark of a cut, or before everything."""
    meanwhile: tuple[BesideCut, ...] = ()
    """Operations between the cut and the opening."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """A reader, if open, reads the changes: a copy that is kept from changes alone must equal the store."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseReader:
    """Closes a reader, if open."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareAll:
    """Compares every row, state, time and stamp through a cut, and the changes since the mark of an open reader."""

    since: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reload:
    """Cuts, changes the store after the cut, and resumes from the cut, in a new store or in the same one."""

    by: Literal["blocks", "files"] = "blocks"
    in_place: bool = False
    meanwhile: tuple[BesideCut, ...] = ()


Operation: TypeAlias = BesideCut | OpenReader | Follow | CloseReader | CompareAll | Reload
