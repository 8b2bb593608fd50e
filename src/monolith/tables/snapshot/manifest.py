"""The list of what a snapshot consists of, a sealed JSON file (`monolith.files.seal`), and the names of its files."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from monolith import _core
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError
from monolith.files import open_storage, seal, unseal
from monolith.tables.batch import stamps_from_json, stamps_json
from monolith.tables.history import ALL_BUCKETS, OwnerClock, bucket_bounds
from monolith.tables.schema import TableSchema, fnv1a_64

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from monolith.files import Storage

FORMAT_VERSION = 2
"""Version of the manifest and of the folder's layout.

To change either: raise the number, describe the new form in docs/formats/snapshot.md under its version, keep reading
the old one, and store a real snapshot of the old version under tests/format/v<number>/ with a test that restores it.
Row blocks and bucket files carry versions of their own (core/format), raised the same way.
"""

FORMAT = "monolith-snapshot"
MANIFEST_NAME = "manifest.json"
_MOST_BYTES = 1 << 30
"""Size of the largest manifest that is read."""
FILE_NAME = re.compile(r"buckets-(\d{4})-(\d{4})-([0-9a-f]{16})\.rows")
_OURS = re.compile(r"buckets-\d{4}-\d{4}-[0-9a-f]{16}\.rows(\.tmp)?|manifest\.json(\.[0-9a-f]{8})?\.tmp")
"""Every name that a killed save may leave in the folder."""

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None
_Entry = TypeVar("_Entry", bound="TableEntry | FileEntry")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEntry:
    """One table of the group, in the order of the numbers that row blocks carry."""

    name: str
    schema: str
    """Canonical text of what its rows hold; see `monolith.tables.schema`."""
    digest: int
    """64-bit hash of `schema`, as in every row block of the table."""
    rows: int
    newest_time: int
    """Unix seconds of the table's newest update, the reference of expiry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One bucket file."""

    name: str
    begin: int
    """First bucket."""
    end: int
    """One past the last bucket."""
    bytes: int
    index_crc32c: int
    """Checksum of the file's index; the index holds the checksum of every block, so this one covers the file."""
    rows: int
    """Rows of all tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotManifest:
    """A snapshot: tables, files, and what the caller wanted to keep with them."""

    snapshot_id: int
    """64 random bits, in every file too: files of two snapshots cannot be mixed."""
    generation: int
    """Given by the caller; a save does not replace a snapshot of a higher generation."""
    epoch: int
    """Epoch of the cut in its group's history."""
    created: int
    """Unix seconds at which the save began."""
    state: bool
    """Whether rows are full (weights and optimizer state) or compressed serving rows."""
    tables: tuple[TableEntry, ...]
    files: tuple[FileEntry, ...]
    applied: tuple[OwnerClock, ...]
    """Clocks of the owners by ascending buckets: the last batch of every worker in the rows."""
    extra: Json
    """Other values of the caller."""

    @property
    def rows(self) -> dict[str, int]:
        """Table name to number of rows."""
        return {table.name: table.rows for table in self.tables}

    @property
    def buckets(self) -> range:
        """The buckets it holds."""
        return range(self.files[0].begin, self.files[-1].end)

    def to_bytes(self) -> bytes:
        """Returns the text of the manifest file."""
        return seal({**_plain(self), "format": FORMAT, "version": FORMAT_VERSION})

    @classmethod
    def from_bytes(cls, text: bytes, *, origin: str) -> SnapshotManifest:
        """Parses what `to_bytes` wrote.

        Raises:
            DataLossError: the text is anything else; names `origin` (the file), offset and reason.
        """
        body = unseal(text, subject=origin, format_name=FORMAT, versions=range(1, FORMAT_VERSION + 1))
        try:
            manifest = _built(body)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataLossError(f"{origin}: offset 0: not the fields of a manifest: {error!r}") from error
        _check(manifest, origin)
        return manifest


def require_json(value: Json, *, name: str) -> None:
    """Checks that a value survives a round trip through a manifest.

    Raises:
        InvalidArgumentError: not made of JSON values alone.
    """
    try:
        same = json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"snapshot: {name} must be made of plain JSON values: {error}") from error
    if not same:
        raise InvalidArgumentError(f"snapshot: {name} must be made of plain JSON values: keys texts, sequences lists")


def read_manifest(folder: str | os.PathLike[str]) -> SnapshotManifest:
    """Reads the manifest of a snapshot folder.

    Raises:
        NotFoundError: there is no committed snapshot.
        DataLossError: the file is damaged.
    """
    return manifest_of(open_storage(folder))


def manifest_of(storage: Storage) -> SnapshotManifest:
    """Reads the manifest in a folder, like `read_manifest`."""
    try:
        text = storage.read(MANIFEST_NAME, most_bytes=_MOST_BYTES)
    except NotFoundError as error:
        raise NotFoundError(f"folder '{storage.path}': no snapshot here ({MANIFEST_NAME} is missing)") from error
    return SnapshotManifest.from_bytes(text, origin=f"file '{storage.place(MANIFEST_NAME)}'")


def _plain(manifest: SnapshotManifest) -> dict[str, Any]:
    """Returns plain dictionaries; the caller's values unchanged."""
    document: dict[str, Any] = {field.name: getattr(manifest, field.name) for field in fields(manifest)}
    document["tables"] = [asdict(table) for table in manifest.tables]
    document["files"] = [asdict(file) for file in manifest.files]
    document["applied"] = clocks_json(manifest.applied)
    return document


def _built(document: Mapping[str, Any]) -> SnapshotManifest:
    values = {key: value for key, value in document.items() if key not in {"format", "version"}}
    values["tables"] = tuple(_entry(TableEntry, entry) for entry in values["tables"])
    values["files"] = tuple(_entry(FileEntry, entry) for entry in values["files"])
    values["applied"] = clocks_from_json(values["applied"])
    for key, expected in (("snapshot_id", int), ("generation", int), ("epoch", int), ("created", int), ("state", bool)):
        if type(values[key]) is not expected or not -(2**63) <= values[key] < 2**64:
            raise TypeError(f"{key} is {values[key]!r}")
    return SnapshotManifest(**values)


def _entry(cls: type[_Entry], values: Mapping[str, Any]) -> _Entry:
    for field in fields(cls):
        value: Any = values[field.name]
        bits = 32 if field.name in {"index_crc32c", "newest_time"} else 64
        is_right = type(value) is str if field.type == "str" else type(value) is int and 0 <= value < 2**bits
        if not is_right:
            raise TypeError(f"{field.name} is {value!r}")
    return cls(**values)


def _check(manifest: SnapshotManifest, origin: str) -> None:
    """Rejects, before anything is opened, what a writer never writes, even with a correct checksum."""
    names = [table.name for table in manifest.tables]
    if not names or names != sorted(set(names)):
        raise DataLossError(f"{origin}: offset 0: tables must be sorted by name and distinct, got {names}")
    for table in manifest.tables:
        if TableSchema.parse(table.name, table.schema).text != table.schema or fnv1a_64(table.schema) != table.digest:
            raise DataLossError(f"{origin}: offset 0: table {table.name!r}: schema and digest do not agree")
    end = manifest.files[0].begin if manifest.files else -1
    for file in manifest.files:
        match = FILE_NAME.fullmatch(file.name)
        expected = (f"{file.begin:04d}", f"{file.end:04d}", f"{manifest.snapshot_id:016x}")
        if match is None or match.groups() != expected:
            raise DataLossError(f"{origin}: offset 0: {file.name!r} is not the name of a file of this snapshot")
        if file.begin != end or not file.begin < file.end <= _core.NUM_BUCKETS:
            raise DataLossError(f"{origin}: offset 0: {file.name!r} does not follow the buckets before it")
        end = file.end
    if end < 0:
        raise DataLossError(f"{origin}: offset 0: no files")


def clocks_json(clocks: Sequence[OwnerClock]) -> Any:
    """Returns the clocks as `clocks_from_json` reads them."""
    return [
        {"buckets": [clock.buckets.start, clock.buckets.stop], "stamps": stamps_json(clock.stamps)} for clock in clocks
    ]


def clocks_from_json(clocks: Any) -> tuple[OwnerClock, ...]:
    """Parses what `clocks_json` made, or a manifest of version 1: one set of stamps for all buckets, or any JSON value.

    Raises:
        KeyError, TypeError, ValueError: it is neither of them.
    """
    if not isinstance(clocks, list):
        stamps = stamps_from_json(clocks) if isinstance(clocks, dict) and _are_stamps(clocks) else {}
        return (OwnerClock(ALL_BUCKETS, stamps),) if stamps else ()
    owner_clocks = tuple(OwnerClock(range(*clock["buckets"]), stamps_from_json(clock["stamps"])) for clock in clocks)
    for clock in owner_clocks:
        bucket_bounds(clock.buckets)
    return owner_clocks


def _are_stamps(values: Mapping[str, Any]) -> bool:
    """Returns whether these are stamps: version 1 let callers of `save` put any value here."""
    return all(
        worker.isdigit() and isinstance(stamp, dict) and stamp.keys() == {"seq", "position", "event_time"}
        for worker, stamp in values.items()
    )


def file_name(begin: int, end: int, snapshot_id: int) -> str:
    """Returns the name of the file of buckets [begin, end); the id separates it from files of the replaced snapshot."""
    return f"buckets-{begin:04d}-{end:04d}-{snapshot_id:016x}.rows"


def bucket_ranges(num_files: int, buckets: range = ALL_BUCKETS) -> Iterator[tuple[int, int]]:
    """Cuts consecutive buckets into `num_files` runs whose sizes differ by at most one."""
    size, rest = divmod(len(buckets), num_files)
    begin = buckets.start
    for number in range(num_files):
        end = begin + size + (number < rest)
        yield begin, end
        begin = end


def unlisted(names: Iterable[str], manifest: SnapshotManifest) -> list[str]:
    """Returns the names that a save makes and this manifest does not list."""
    listed = {file.name for file in manifest.files}
    return [name for name in names if _OURS.fullmatch(name) and name not in listed]
