"""The layout of a store's rows, as text that two sides can compare.

Two stores may exchange rows iff their schemas agree, so the digest is compared when a client connects, a snapshot is
restored or a log is replayed. How rows *learn* (learning rates, initializers, expiry) is not part of it: that may
change between two runs without making old rows unreadable.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monolith.errors import DataLossError, FailedPreconditionError, InvalidArgumentError
from monolith.ids import NUM_SLOTS_V2

_TABLE_PREFIX = "monolith-table/1"
_SCHEMA_PREFIX = "monolith-schema/1"
_SLOT_RULE = "slot=v2"
"""Expiry and admission by slot read bits 48..62 of the id."""


def fnv1a_64(text: str) -> int:
    """Returns the 64-bit FNV-1a hash of a text's UTF-8 bytes.

    >>> hex(fnv1a_64(""))
    '0xcbf29ce484222325'
    """
    digest = 0xCBF29CE484222325
    for byte in text.encode():
        digest = ((digest ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return digest


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSchema:
    """One segment of a row."""

    dim: int
    optimizer: str
    state_bytes: int
    compressor: str
    compressed_bytes: int

    @classmethod
    def parse(cls, text: str) -> SegmentSchema:
        """Parses `<dim>,<optimizer>,<state bytes>,<compressor>,<compressed bytes>`."""
        parts = text.split(",")
        if len(parts) != 5 or not (parts[0].isdigit() and parts[2].isdigit() and parts[4].isdigit()):
            raise DataLossError(f"table schema: segment of 5 parts expected, got {text!r}")
        return cls(
            dim=int(parts[0]),
            optimizer=parts[1],
            state_bytes=int(parts[2]),
            compressor=parts[3],
            compressed_bytes=int(parts[4]),
        )

    @property
    def text(self) -> str:
        """The canonical form that `parse` reads."""
        return f"{self.dim},{self.optimizer},{self.state_bytes},{self.compressor},{self.compressed_bytes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """What a row of one table holds.

    >>> table = TableSchema.parse("user", "monolith-table/1;serving=0;segment=4,adagrad,16,fp32,16")
    >>> table.dim, table.state_bytes
    (4, 16)
    """

    name: str
    serving: bool
    segments: tuple[SegmentSchema, ...]
    wide_slots: tuple[int, ...] = ()
    """Numbers of the slots that share the table and take any int64, ascending; a key holds the index of its slot."""

    @classmethod
    def parse(cls, name: str, text: str) -> TableSchema:
        """Parses the canonical text of the core."""
        prefix, *parts = text.split(";")
        serving_part = parts[0] if parts else ""
        if prefix != _TABLE_PREFIX or serving_part not in {"serving=0", "serving=1"}:
            raise DataLossError(f"table {name!r}: schema must begin with '{_TABLE_PREFIX};serving=', got {text[:60]!r}")
        segments = []
        wide_slots: tuple[int, ...] = ()
        for number, part in enumerate(parts[1:]):
            key, _, value = part.partition("=")
            if key == "wide_slots" and number == 0:
                wide_slots = _slot_numbers(name, value)
                continue
            if key != "segment":
                raise DataLossError(f"table {name!r}: schema part must be segment=, got {part!r}")
            segments.append(SegmentSchema.parse(value))
        return cls(name=name, serving=serving_part == "serving=1", segments=tuple(segments), wide_slots=wide_slots)

    @property
    def dim(self) -> int:
        """Weights of a row."""
        return sum(segment.dim for segment in self.segments)

    @property
    def state_bytes(self) -> int:
        """Optimizer state of a row."""
        return sum(segment.state_bytes for segment in self.segments)

    def payload_bytes(self, *, state: bool) -> int:
        """Returns the bytes of a row in a block: weights and optimizer state; compressed weights for `state=False`."""
        if state and not self.serving:
            return 4 * self.dim + self.state_bytes
        return sum(segment.compressed_bytes for segment in self.segments)

    @property
    def text(self) -> str:
        """The canonical form that `parse` reads."""
        wide_slots = f";wide_slots={','.join(map(str, self.wide_slots))}" if self.wide_slots else ""
        segments = "".join(f";segment={segment.text}" for segment in self.segments)
        return f"{_TABLE_PREFIX};serving={int(self.serving)}{wide_slots}{segments}"

    @property
    def digest(self) -> int:
        """64-bit hash of `text`, carried by every row block."""
        return fnv1a_64(self.text)


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of a store in sorted-name order; table numbers in row blocks and splits are positions in it."""

    tables: tuple[TableSchema, ...]

    def __post_init__(self) -> None:
        names = [table.name for table in self.tables]
        if names != sorted(set(names)):
            raise FailedPreconditionError(f"schema: tables must be sorted by name and distinct, got {names}")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(table.name for table in self.tables)

    @property
    def dims(self) -> tuple[int, ...]:
        """Weights of a row, per table."""
        return tuple(table.dim for table in self.tables)

    def number_of(self, name: str) -> int:
        """Returns the number of a table, its position in the order of names.

        Raises:
            InvalidArgumentError: no such table; names the closest one.
        """
        return table_number(self.names, name)

    def num_bytes(self, rows: Mapping[str, int], *, state: bool) -> int:
        """Returns the approximate bytes of these rows in a file, without filters and headers of blocks."""
        return sum(rows[table.name] * (12 + table.payload_bytes(state=state)) for table in self.tables)

    @property
    def num_segments(self) -> int:
        """Segments of all tables: the length of a learning-rate vector."""
        return sum(len(table.segments) for table in self.tables)

    @property
    def text(self) -> str:
        """One line per table."""
        lines = [f"{_SCHEMA_PREFIX};{_SLOT_RULE}"]
        lines += [f"{table.name}={table.text}" for table in self.tables]
        return "\n".join(lines) + "\n"

    @property
    def digest(self) -> int:
        """64-bit hash of `text`."""
        return fnv1a_64(self.text)

    @classmethod
    def parse(cls, text: str) -> Schema:
        """Parses `text`.

        Raises:
            DataLossError: it is not the text of a schema.
        """
        head, _, rest = text.partition("\n")
        if head != f"{_SCHEMA_PREFIX};{_SLOT_RULE}":
            raise DataLossError(f"schema: first line must be '{_SCHEMA_PREFIX};{_SLOT_RULE}', got {head[:60]!r}")
        tables = []
        for line in rest.splitlines():
            name, _, table = line.rpartition(f"={_TABLE_PREFIX}")
            tables.append(TableSchema.parse(name, _TABLE_PREFIX + table))
        return cls(tuple(tables))

    def differences(self, other: Schema) -> list[str]:
        """Returns the differences of `other`, one readable line each; empty iff rows can be exchanged."""
        mine = {table.name: table for table in self.tables}
        theirs = {table.name: table for table in other.tables}
        lines = [f"table {name!r} is missing" for name in sorted(mine.keys() - theirs.keys())]
        lines += [f"table {name!r} is unknown" for name in sorted(theirs.keys() - mine.keys())]
        for name in sorted(mine.keys() & theirs.keys()):
            lines += _table_differences(mine[name], theirs[name])
        return lines


def table_number(names: tuple[str, ...], name: str) -> int:
    """Returns the position of a table among these names.

    Raises:
        InvalidArgumentError: no such table; names the closest one.
    """
    try:
        return names.index(name)
    except ValueError:
        close = difflib.get_close_matches(str(name), names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the tables are {', '.join(names)}"
        raise InvalidArgumentError(f"unknown table {name!r}; {hint}") from None


def _slot_numbers(name: str, text: str) -> tuple[int, ...]:
    """Parses `wide_slots`: ascending, in the order of the index in a key."""
    parts = text.split(",")
    numbers = tuple(int(part) for part in parts if part.isdigit())
    if len(numbers) != len(parts) or list(numbers) != sorted(set(numbers)) or numbers[-1] >= NUM_SLOTS_V2:
        raise DataLossError(f"table {name!r}: wide_slots must be ascending numbers of slots, got {text[:60]!r}")
    return numbers


def _table_differences(mine: TableSchema, theirs: TableSchema) -> list[str]:
    subject = f"table {mine.name!r}"
    if mine.serving != theirs.serving:
        kinds = ("training", "serving")
        return [f"{subject}: expected {kinds[mine.serving]} rows, got {kinds[theirs.serving]} rows"]
    if len(mine.segments) != len(theirs.segments):
        return [f"{subject}: expected {len(mine.segments)} segments, got {len(theirs.segments)}"]
    if mine.wide_slots != theirs.wide_slots:
        expected_slots, got_slots = list(mine.wide_slots), list(theirs.wide_slots)
        return [f"{subject}: expected slots {expected_slots} to take any int64, got {got_slots}"]
    return [
        f"{subject}, segment {number}: expected {expected.text}, got {got.text}"
        for number, (expected, got) in enumerate(zip(mine.segments, theirs.segments, strict=True))
        if expected != got
    ]


_SHOWN = 8
"""Differences that a message lists."""


def differences(here: Any, other: Any) -> str:
    """Returns the first few fields whose values differ, by their path; empty where nothing does."""
    entries = _walk(here, other, "")
    lines = [f"{path or 'it'}: {mine} here, {theirs} given" for path, mine, theirs in entries[:_SHOWN]]
    if len(entries) > _SHOWN:
        lines.append(f"and {len(entries) - _SHOWN} more")
    return "; ".join(lines)


def _walk(here: Any, other: Any, path: str) -> list[tuple[str, str, str]]:
    if isinstance(here, Mapping) and isinstance(other, Mapping):
        entries = []
        for key in sorted({*here, *other}):
            inner = f"{path}.{key}" if path else str(key)
            if key not in here:
                entries.append((inner, "nothing", repr(other[key])))
            elif key not in other:
                entries.append((inner, repr(here[key]), "nothing"))
            else:
                entries += _walk(here[key], other[key], inner)
        return entries
    if isinstance(here, list) and isinstance(other, list) and len(here) == len(other):
        pairs = enumerate(zip(here, other, strict=True))
        return [entry for number, (mine, theirs) in pairs for entry in _walk(mine, theirs, f"{path}[{number}]")]
    return [] if here == other else [(path, repr(here), repr(other))]
