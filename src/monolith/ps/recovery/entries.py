"""Metadata of a recovery record file for each owner, and the lineage of rows. Grammar: docs/formats/recovery.md."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from monolith.tables import stamps_from_json, stamps_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.tables import BatchStamp

_MOST_SNAPSHOTS = 64


class Lineage:
    """One unbroken history of some rows; it ends when they are replaced. Not thread-safe: the owner has the lock.

    Args:
        number: Number of a history that continues that of a previous process; None: a new one.
        snapshots: Snapshots of that history.
    """

    def __init__(self, number: int | None = None, snapshots: dict[int, int] | None = None) -> None:
        self.number = secrets.randbits(63) if number is None else number
        self.snapshots = dict(snapshots or {})
        """Snapshot id -> the epoch at which these rows were equal to the snapshot."""
        self.origin: int | None = None
        """Epoch at which the rows were restored from a snapshot; None: they were not."""

    def begin(self, snapshot_id: int | None, epoch: int) -> None:
        """Begins a new history, of rows replaced by those of a snapshot, at the mark of this epoch, or by others."""
        self.number = secrets.randbits(63)
        self.origin = None if snapshot_id is None else epoch
        self.snapshots = {} if snapshot_id is None else {snapshot_id: epoch}

    def saved_as(self, snapshot_id: int, epoch: int) -> None:
        """Adds a snapshot written at this epoch; it may never be committed."""
        self.snapshots[snapshot_id] = epoch
        while len(self.snapshots) > _MOST_SNAPSHOTS:
            del self.snapshots[next(iter(self.snapshots))]


@dataclass(frozen=True, slots=True)
class Place:
    """A byte range of a file."""

    offset: int
    bytes: int

    def to_json(self) -> list[int]:
        """Returns offset and size."""
        return [self.offset, self.bytes]

    @classmethod
    def from_json(cls, value: Any) -> Place:
        """Reads the result of `to_json`.

        Raises:
            TypeError, ValueError: the value is something else.
        """
        offset, size = value
        return cls(_number(offset), _number(size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Rows and tombstones of one store."""

    begin: int
    """The section has everything that changed after this epoch; 0: all rows."""
    places: tuple[Place, ...]
    """Row blocks, to be loaded in this order."""
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsEntry:
    """The consistent state of one store at an epoch."""

    agreement: str
    lineage: int
    generation: int
    life: int
    end: int
    """Epoch of the state."""
    stamps: Mapping[int, BatchStamp]
    newest_times: tuple[int, ...]
    snapshots: Mapping[int, int]
    """Snapshot id -> epoch, of this lineage."""
    section: Section | None
    """None: the rows are in earlier files, or in a snapshot."""

    def with_section(self, section: Section | None) -> RowsEntry:
        """Returns the same entry with these rows."""
        return replace(self, section=section)

    def is_like(self, other: RowsEntry | None) -> bool:
        """Returns whether both are equal except for their epoch and their rows."""
        return other is not None and replace(self, end=other.end, section=other.section) == other

    def to_json(self) -> dict[str, Any]:
        """Returns plain values."""
        section = self.section
        return {
            "agreement": self.agreement,
            "lineage": self.lineage,
            "life": [self.generation, self.life],
            "end": self.end,
            "stamps": stamps_json(self.stamps),
            "newest_times": list(self.newest_times),
            "snapshots": {str(number): epoch for number, epoch in self.snapshots.items()},
            "section": None
            if section is None
            else {
                "begin": section.begin,
                "places": [place.to_json() for place in section.places],
                "rows": section.rows,
            },
        }

    @classmethod
    def from_json(cls, value: Any) -> RowsEntry:
        """Reads the result of `to_json`.

        Raises:
            KeyError, TypeError, ValueError: the value is something else.
        """
        section = value["section"]
        generation, life = value["life"]
        return cls(
            agreement=_text(value["agreement"]),
            lineage=_number(value["lineage"]),
            generation=_number(generation),
            life=_number(life),
            end=_number(value["end"]),
            stamps=stamps_from_json(value["stamps"]),
            newest_times=tuple(_number(seconds) for seconds in value["newest_times"]),
            snapshots={int(number): _number(epoch) for number, epoch in value["snapshots"].items()},
            section=None
            if section is None
            else Section(
                begin=_number(section["begin"]),
                places=tuple(Place.from_json(place) for place in section["places"]),
                rows=_number(section["rows"]),
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseEntry:
    """A consistent state of the dense weights of a server."""

    layout: Mapping[str, Any]
    origin: int
    stamps: Mapping[int, BatchStamp]
    index_bytes: int
    number: int
    """Number of the file that has the bytes."""
    place: Place

    def to_json(self) -> dict[str, Any]:
        """Returns plain values."""
        return {
            "layout": self.layout,
            "origin": self.origin,
            "stamps": stamps_json(self.stamps),
            "index_bytes": self.index_bytes,
            "number": self.number,
            "place": self.place.to_json(),
        }

    @classmethod
    def from_json(cls, value: Any) -> DenseEntry:
        """Reads the result of `to_json`.

        Raises:
            KeyError, TypeError, ValueError: the value is something else.
        """
        if not isinstance(value["layout"], dict):
            raise TypeError(f"layout is {value['layout']!r}")
        return cls(
            layout=value["layout"],
            origin=_number(value["origin"]),
            stamps=stamps_from_json(value["stamps"]),
            index_bytes=_number(value["index_bytes"]),
            number=_number(value["number"]),
            place=Place.from_json(value["place"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMeta:
    """Metadata of one file."""

    index: int
    num_ps: int
    number: int
    """Number of the file; increases."""
    writer: int
    """Random number of the process that wrote the file."""
    initialized: frozenset[str]
    """Owners that a client has marked as initialized."""
    stores: Mapping[str, RowsEntry] = field(default_factory=dict)
    dense: DenseEntry | None = None
    parts: Mapping[str, Place] = field(default_factory=dict)
    """Small states of other parts of the server, in this file."""

    def to_json(self) -> dict[str, Any]:
        """Returns plain values."""
        return {
            "index": self.index,
            "num_ps": self.num_ps,
            "number": self.number,
            "writer": self.writer,
            "initialized": sorted(self.initialized),
            "stores": {name: entry.to_json() for name, entry in self.stores.items()},
            "dense": None if self.dense is None else self.dense.to_json(),
            "parts": {name: place.to_json() for name, place in self.parts.items()},
        }

    @classmethod
    def from_json(cls, value: Any) -> RecordMeta:
        """Reads the result of `to_json`.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: the value is something else.
        """
        return cls(
            index=_number(value["index"]),
            num_ps=_number(value["num_ps"]),
            number=_number(value["number"]),
            writer=_number(value["writer"]),
            initialized=frozenset(_text(owner) for owner in value["initialized"]),
            stores={name: RowsEntry.from_json(entry) for name, entry in value["stores"].items()},
            dense=None if value["dense"] is None else DenseEntry.from_json(value["dense"]),
            parts={name: Place.from_json(place) for name, place in value["parts"].items()},
        )

    @property
    def places(self) -> list[Place]:
        """All byte ranges of this file that its metadata refers to."""
        sections = [entry.section for entry in self.stores.values() if entry.section is not None]
        places = [place for section in sections for place in section.places]
        if self.dense is not None and self.dense.number == self.number:
            places.append(self.dense.place)
        return [*places, *self.parts.values()]


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is not a count")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value
