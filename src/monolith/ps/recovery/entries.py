"""What one file of a recovery record says of each owner, as JSON values. Grammar: docs/formats/recovery.md."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from monolith.tables.snapshot.clocks import stamps_from_json, stamps_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.tables.batch import BatchStamp

__all__ = ["DenseEntry", "Place", "RecordMeta", "RowsEntry", "Section"]


@dataclass(frozen=True, slots=True)
class Place:
    """Some bytes of a file."""

    offset: int
    bytes: int

    def to_json(self) -> list[int]:
        """Two numbers."""
        return [self.offset, self.bytes]

    @classmethod
    def from_json(cls, value: Any) -> Place:
        """What `to_json` made.

        Raises:
            TypeError, ValueError: anything else.
        """
        offset, size = value
        return cls(_number(offset), _number(size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Rows and tombstones of one store."""

    begin: int
    """Everything that changed after this epoch is in it; 0: all rows."""
    places: tuple[Place, ...]
    """Row blocks, to be loaded in this order."""
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsEntry:
    """One store as it was at one moment."""

    agreement: str
    lineage: int
    generation: int
    life: int
    end: int
    """Epoch of that moment."""
    stamps: Mapping[int, BatchStamp]
    newest_times: tuple[int, ...]
    snapshots: Mapping[int, int]
    """Id -> epoch, of this lineage."""
    section: Section | None
    """None: the rows of this moment are in the files before, or in a snapshot."""

    def with_section(self, section: Section | None) -> RowsEntry:
        """The same moment, with these rows."""
        return replace(self, section=section)

    def is_like(self, other: RowsEntry | None) -> bool:
        """Whether both say the same but for their moment and their rows."""
        return other is not None and replace(self, end=other.end, section=other.section) == other

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
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
        """What `to_json` made.

        Raises:
            KeyError, TypeError, ValueError: anything else.
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
            newest_times=tuple(_number(each) for each in value["newest_times"]),
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
    """The dense weights of a server as they were at one moment."""

    layout: Mapping[str, Any]
    origin: int
    stamps: Mapping[int, BatchStamp]
    index_bytes: int
    number: int
    """Of the file that has the bytes."""
    place: Place

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
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
        """What `to_json` made.

        Raises:
            KeyError, TypeError, ValueError: anything else.
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
    """What one file says."""

    index: int
    num_ps: int
    number: int
    """Of the file; grows."""
    writer: int
    """Drawn at random by the process that wrote it."""
    initialized: frozenset[str]
    """Owners of which a client has said that they have state."""
    stores: Mapping[str, RowsEntry] = field(default_factory=dict)
    dense: DenseEntry | None = None
    parts: Mapping[str, Place] = field(default_factory=dict)
    """Small states of other parts of the server, in this file."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
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
        """What `to_json` made.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: anything else.
        """
        return cls(
            index=_number(value["index"]),
            num_ps=_number(value["num_ps"]),
            number=_number(value["number"]),
            writer=_number(value["writer"]),
            initialized=frozenset(_text(each) for each in value["initialized"]),
            stores={name: RowsEntry.from_json(entry) for name, entry in value["stores"].items()},
            dense=None if value["dense"] is None else DenseEntry.from_json(value["dense"]),
            parts={name: Place.from_json(place) for name, place in value["parts"].items()},
        )

    @property
    def places(self) -> list[Place]:
        """All bytes of this file that it speaks of."""
        sections = [entry.section for entry in self.stores.values() if entry.section is not None]
        found = [place for section in sections for place in section.places]
        if self.dense is not None and self.dense.number == self.number:
            found.append(self.dense.place)
        return [*found, *self.parts.values()]


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is not a count")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value
