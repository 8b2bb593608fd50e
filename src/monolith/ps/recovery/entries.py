"""A state of a server in its recovery record, and the lineage of rows. Grammar: docs/formats/recovery.md."""

from __future__ import annotations

import json
import secrets
from base64 import b64decode, b64encode
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from monolith.errors import DataLossError
from monolith.tables import stamps_from_json, stamps_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.tables import BatchStamp

FORMAT_VERSION = 2
"""Version of the states. A server skips those of another version: they belong to one run, and a checkpoint has older
state. To change it: raise the number and describe the new format in docs/formats/recovery.md."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Rows and tombstones of one store."""

    begin: int
    """The section has everything that changed after this epoch; 0: all rows."""
    records: tuple[int, ...]
    """Numbers of the records with the row blocks, to be loaded in this order."""
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
    """None: the rows are in earlier states, or in a snapshot."""

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
                "records": list(section.records),
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
            newest_times=_numbers(value["newest_times"]),
            snapshots={int(number): _number(epoch) for number, epoch in value["snapshots"].items()},
            section=None
            if section is None
            else Section(
                begin=_number(section["begin"]),
                records=_numbers(section["records"]),
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
    bytes: int
    records: tuple[int, ...]
    """Numbers of the records with the bytes."""

    def to_json(self) -> dict[str, Any]:
        """Returns plain values."""
        return {
            "layout": self.layout,
            "origin": self.origin,
            "stamps": stamps_json(self.stamps),
            "index_bytes": self.index_bytes,
            "bytes": self.bytes,
            "records": list(self.records),
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
            bytes=_number(value["bytes"]),
            records=_numbers(value["records"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedState:
    """The state of a server that a record describes, with the records before it."""

    initialized: frozenset[str] = frozenset()
    """Owners that a client has marked as initialized."""
    stores: Mapping[str, RowsEntry] = field(default_factory=dict)
    dense: DenseEntry | None = None
    parts: Mapping[str, bytes] = field(default_factory=dict)
    """Small states of other parts of the server."""

    def to_bytes(self) -> bytes:
        """Encodes the state."""
        document = {
            "version": FORMAT_VERSION,
            "initialized": sorted(self.initialized),
            "stores": {name: entry.to_json() for name, entry in self.stores.items()},
            "dense": None if self.dense is None else self.dense.to_json(),
            "parts": {name: b64encode(data).decode() for name, data in self.parts.items()},
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> RecordedState:
        """Decodes what `to_bytes` wrote.

        Raises:
            DataLossError: the text is something else.
        """
        try:
            value = json.loads(text)
            if value["version"] != FORMAT_VERSION:
                raise DataLossError(f"version {value['version']}, this build reads version {FORMAT_VERSION}")
            return cls(
                initialized=frozenset(_text(owner) for owner in value["initialized"]),
                stores={name: RowsEntry.from_json(entry) for name, entry in value["stores"].items()},
                dense=None if value["dense"] is None else DenseEntry.from_json(value["dense"]),
                parts={name: b64decode(data, validate=True) for name, data in value["parts"].items()},
            )
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise DataLossError(f"not the fields of a state: {error!r}") from error


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is not a count")
    return value


def _numbers(values: Any) -> tuple[int, ...]:
    return tuple(_number(value) for value in values)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value
