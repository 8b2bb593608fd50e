"""Checkpoints of ByteDance Monolith: record files of ``EntryDump`` messages, read and written.

A single table is `<base>-%05d-of-%05d`; a group adds `<base>.meta-%05d-of-%05d` and compresses its data files.
Everything about the bytes is in docs/formats/entry_dump.md. Paths are local.

Where upstream loses or mixes data, this module does not: a damaged file is found before the table is touched, a write
that fails leaves no file, rows are checked against the table's dims and optimizers, and both powers of Adam are
restored.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from monolith import _core
from monolith.errors import DataLossError, FailedPreconditionError, InvalidArgumentError
from monolith.files import begin_file, open_storage
from monolith.tables.arrays import id_array
from monolith.tables.formats.sharded_files import refuse_other_totals, shard_path, shards_of
from monolith.tables.snapshot.manifest import bucket_ranges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monolith.tables.arrays import Ids
    from monolith.tables.hash_table import HashTable
    from monolith.tables.local.native_tables import NativeTables
    from monolith.tables.table_config import TableConfig
    from monolith.tables.table_group import TableGroup

BasePath = str | os.PathLike[str]

_ROWS_PER_SHARD = 1_000_000
_MOST_AUTOMATIC_SHARDS = 4
_MOST_SHARDS = 99_999
_MOST_THREADS = 4
_NAME_TAG = 0x0A
_ENTRIES_TAG = 0x10
"""Fields 1 and 2 of a MultiHashTableMetadata message, as they stand on the wire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """Result of an import of a group's files."""

    rows: int
    """Rows read into tables."""
    ignored_tables: tuple[str, ...]
    """Tables of the files that the group does not have; their entries were read past."""
    missing_tables: tuple[str, ...]
    """Tables of the group that the files do not have."""


def import_entry_dump(table: HashTable, base: BasePath, *, clear: bool = True) -> int:
    """Replaces the rows of a table by those of the files `<base>-*`, and returns how many were read.

    Weights, optimizer state and times are loaded; admission does not apply. All files are read and checked before the
    table is changed. A serving table takes the weights and compresses them.

    Args:
        table: where the rows go.
        base: path up to the ``-00000-of-00001`` part.
        clear: False keeps rows that are not in the files.

    Raises:
        InvalidArgumentError: the set of files is not complete, or a row does not fit the table.
        FailedPreconditionError: a record is not an EntryDump message.
        DataLossError: a file is damaged; names file, offset and reason.
    """
    number = table.native.number_of(table.name)
    plan = [(str(path), [(number, -1)]) for path in shards_of(Path(base))]
    _import(table.native, plan, snappy=False, check_only=True)
    if clear:
        table.clear()
    return _import(table.native, plan, snappy=False, check_only=False)


def export_entry_dump(table: HashTable, base: BasePath, *, num_shards: int = -1) -> list[Path]:
    """Writes the rows of a table as they are now, without the expired ones, to `<base>-%05d-of-%05d`.

    Args:
        table: a training table; serving rows have no state to write.
        base: path up to the ``-00000-of-00001`` part; its folder is created.
        num_shards: number of files; -1: one per million rows, at least 1 and at most 4.

    Returns:
        The files.
    """
    number = table.native.number_of(table.name)
    files = _export_files(Path(base), _num_shards(num_shards, len(table)))
    _export(table.native, files, [number], snappy=False)
    return [path for path, *_ in files]


def lookup_entry(table: HashTable, ids: Ids) -> list[bytes]:
    """Returns rows as ``EntryDump`` messages without the id: weights, optimizer state and time; empty without a row.

    Raises:
        FailedPreconditionError: A serving table, whose rows have no state.
    """
    _refuse_serving([table.native.configs[table.native.number_of(table.name)]])
    rows = table.lookup_rows(id_array(ids, f"table '{table.name}'").reshape(-1))
    payload = np.concatenate([rows.weights.view(np.uint8), rows.state], axis=1)
    entries = _core.encode_entries(table.native.core, table.native.number_of(table.name), payload, rows.time)
    return [entry if found else b"" for entry, found in zip(entries, rows.found.tolist(), strict=True)]


def import_group_entry_dump(
    group: TableGroup, base: BasePath, *, clear: bool = True, table_names: Mapping[str, str] | None = None
) -> ImportReport:
    """Replaces the rows of a group's tables by those of the files `<base>-*` and `<base>.meta-*`.

    Upstream keeps rows that are not in the files, and so does `clear=False`; `clear=True` empties all tables of the
    group first, also those that the files do not have.

    Args:
        group: where the rows go.
        base: path up to the ``-00000-of-00001`` part.
        clear: False keeps rows that are not in the files.
        table_names: table of the files -> table of the group; None: they have the same names.

    Raises:
        InvalidArgumentError: the set of files is not complete, or a row does not fit its table.
        DataLossError: a file is damaged; names file, offset and reason.
    """
    base = Path(base)
    data, meta = shards_of(base), shards_of(_meta_base(base))
    if len(data) != len(meta):
        raise InvalidArgumentError(f"{base}: {len(data)} data files but {len(meta)} metadata files")
    names = dict(zip(group.native.names, group.native.names, strict=True)) if table_names is None else table_names
    numbers = {name: group.native.number_of(table) for name, table in names.items()}
    announced = [_read_metadata(path) for path in meta]
    plan = [
        (str(path), [(numbers.get(name, -1), entries) for name, entries in counts])
        for path, counts in zip(data, announced, strict=True)
    ]
    _import(group.native, plan, snappy=True, check_only=True)
    if clear:
        group.clear()
    rows = _import(group.native, plan, snappy=True, check_only=False)
    announced_names = {name for counts in announced for name, _ in counts}
    return ImportReport(
        rows=rows,
        ignored_tables=tuple(sorted(announced_names - numbers.keys())),
        missing_tables=tuple(
            sorted(set(group.native.names) - {names[name] for name in announced_names & names.keys()})
        ),
    )


def export_group_entry_dump(group: TableGroup, base: BasePath, *, num_shards: int = -1) -> list[Path]:
    """Writes all tables of a group as they are now, without expired rows, to data and metadata files.

    Args:
        group: training tables.
        base: path up to the ``-00000-of-00001`` part; its folder is created.
        num_shards: number of data files; -1: one per million rows of all tables, at least 1 and at most 4.

    Returns:
        Data files, then metadata files.
    """
    base = Path(base)
    size = sum(len(group[name]) for name in group.names)
    files = _export_files(base, _num_shards(num_shards, size))
    meta = _export_files(_meta_base(base), len(files))
    counts = _export(group.native, files, list(range(len(group.native))), snappy=True)
    try:
        for (path, *_), entries in zip(meta, counts, strict=True):
            records = [_metadata_record(name, entries[number]) for number, name in enumerate(group.native.names)]
            with begin_file(path) as temporary:
                _core.write_records(str(path), str(temporary.path), records, snappy=False)
        open_storage(base.parent).sync()
    except BaseException:
        for path, *_ in [*files, *meta]:
            path.unlink(missing_ok=True)
        raise
    return [path for path, *_ in [*files, *meta]]


def entry_counts(base: BasePath) -> dict[str, int]:
    """Returns table name -> number of entries in a group's files, over all shards; reads the metadata only."""
    counts: dict[str, int] = {}
    for path in shards_of(_meta_base(Path(base))):
        for name, entries in _read_metadata(path):
            counts[name] = counts.get(name, 0) + entries
    return counts


def _meta_base(base: Path) -> Path:
    return base.with_name(f"{base.name}.meta")


def _num_shards(num_shards: int, rows: int) -> int:
    if num_shards == -1:
        return min(_MOST_AUTOMATIC_SHARDS, max(1, rows // _ROWS_PER_SHARD))
    if not 1 <= num_shards <= _MOST_SHARDS:
        raise InvalidArgumentError(f"num_shards must be -1 or from 1 to {_MOST_SHARDS}, got {num_shards}")
    return num_shards


def _export_files(base: Path, num_shards: int) -> list[tuple[Path, int, int]]:
    """Returns path and buckets of every shard."""
    open_storage(base.parent).make()
    refuse_other_totals(base, num_shards)
    ranges = enumerate(bucket_ranges(num_shards))
    return [(shard_path(base, shard, num_shards), begin, end) for shard, (begin, end) in ranges]


def _import(
    native: NativeTables, plan: Sequence[tuple[str, list[tuple[int, int]]]], *, snappy: bool, check_only: bool
) -> int:
    return _core.import_entry_dump(
        native.core,
        list(plan),
        snappy=snappy,
        check_only=check_only,
        threads=min(_MOST_THREADS, os.cpu_count() or 1),
        transfer=_core.Transfer(),
    )


def _export(
    native: NativeTables, files: Sequence[tuple[Path, int, int]], tables: list[int], *, snappy: bool
) -> list[list[int]]:
    _refuse_serving([native.configs[number] for number in tables])
    cut = native.core.cut()
    with ExitStack() as ending:
        ending.callback(cut.release)
        temporaries = [str(ending.enter_context(begin_file(path)).path) for path, *_ in files]
        counts = _core.export_entry_dump(
            native.core,
            cut,
            [(str(path), at, begin, end) for (path, begin, end), at in zip(files, temporaries, strict=True)],
            tables,
            snappy=snappy,
            drop_expired=True,
            threads=min(_MOST_THREADS, os.cpu_count() or 1),
            transfer=_core.Transfer(),
        )
    open_storage(files[0][0].parent).sync()
    return counts


def _refuse_serving(configs: list[TableConfig]) -> None:
    if any(config.serving for config in configs):
        raise FailedPreconditionError("ServingEntryAccessor doesn't support Save")


def _metadata_record(name: str, entries: int) -> bytes:
    """Returns a MultiHashTableMetadata message: table_name (1), num_entries (2)."""
    encoded = name.encode()
    return bytes([_NAME_TAG]) + _varint(len(encoded)) + encoded + bytes([_ENTRIES_TAG]) + _varint(entries)


def _read_metadata(path: Path) -> list[tuple[str, int]]:
    try:
        records = _core.read_records(str(path), snappy=False)
    except DataLossError as error:
        raise DataLossError(f"Read table metadata failed! ({error})") from error
    return [_parse_metadata(record, path) for record in records]


def _parse_metadata(record: bytes, path: Path) -> tuple[str, int]:
    try:
        return _metadata_fields(record)
    except (IndexError, ValueError) as error:
        raise DataLossError(f"Parse table metadata failed! (file '{path}': {error})") from error


def _metadata_fields(record: bytes) -> tuple[str, int]:
    name, entries, at = "", 0, 0
    while at < len(record):
        tag, at = _take_varint(record, at)
        number, at = _take_varint(record, at)
        if tag == _ENTRIES_TAG:
            entries = number
        elif tag == _NAME_TAG and number <= len(record) - at:
            name, at = record[at : at + number].decode(), at + number
        else:
            raise ValueError(f"field {tag >> 3} is unknown or cut off")
    if entries >= 1 << 63:
        raise ValueError(f"{entries} entries")
    return name, entries


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _take_varint(record: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while record[at] & 0x80:
        number |= (record[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
    return number | record[at] << shift, at + 1
