"""Bucket files read and written block by block, without a group: for tools that inspect or re-shard snapshots.

Byte grammar: docs/formats/snapshot.md. A training process reads and writes them in the core.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from monolith import _core
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError
from monolith.files import named_errors
from monolith.tables.formats.row_block import HEADER, TRAILER, BlockKind, RowBlock
from monolith.tables.history import ALL_BUCKETS
from monolith.tables.schema import TableSchema
from monolith.tables.snapshot.location import SnapshotPath, fetched_files, open_destination, open_source, writing_folder
from monolith.tables.snapshot.manifest import FileEntry, SnapshotManifest, bucket_ranges, file_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

_HEADER = struct.Struct("<IHHQIIII")
_INDEX = struct.Struct("<QQIIIIII")
_FOOTER = struct.Struct("<QQQIIIIHHI")
_HEADER_MAGIC, _FOOTER_MAGIC, _VERSION = 0x464E534D, 0x4D534E46, 1


def read_blocks(path: SnapshotPath) -> Iterator[RowBlock]:
    """Yields every block of a snapshot by ascending bucket; checks all checksums.

    Raises:
        NotFoundError: there is no snapshot, or a file of it is missing.
        DataLossError: a file is damaged.
    """
    with closing(open_source(path)) as source:
        yield from blocks_of(path, source.manifest)


def blocks_of(
    path: SnapshotPath,
    manifest: SnapshotManifest,
    buckets: range = ALL_BUCKETS,
    *,
    kinds: Collection[BlockKind] = frozenset(BlockKind),
) -> Iterator[RowBlock]:
    """Yields every block of these kinds in the files of some buckets that a manifest lists; others are not read.

    Such a file may have other buckets, too.
    """
    files = [file for file in manifest.files if file.end > buckets.start and file.begin < buckets.stop]
    with fetched_files(path, files) as paths:
        for entry, local in zip(files, paths, strict=True):
            yield from _file_blocks(local, entry, manifest.snapshot_id, kinds)


def read_keys(path: SnapshotPath) -> Iterator[tuple[TableSchema, NDArray[np.int64]]]:
    """Yields table and keys of every block of rows; nothing else is read, and only the index is checked."""
    with closing(open_source(path)) as source, ExitStack() as closed:
        tables = [TableSchema.parse(table.name, table.schema) for table in source.manifest.tables]
        files = source.manifest.files
        for entry, local in zip(files, closed.enter_context(fetched_files(path, files)), strict=True):
            with _opened(local) as file:
                for offset, _, _, table, rows, kind, _, _ in _index(file, local, entry, source.manifest.snapshot_id):
                    if kind in {BlockKind.FULL, BlockKind.SERVING}:
                        file.seek(offset + HEADER.size)
                        yield tables[table], np.frombuffer(file.read(8 * rows), np.int64)


def rewrite(source: SnapshotPath, target: SnapshotPath, *, num_files: int) -> SnapshotManifest:
    """Copies a snapshot into another number of bucket files; the rows are the same, byte by byte.

    Raises:
        InvalidArgumentError: `num_files` is not from 1 to the number of buckets.
    """
    if not 1 <= num_files <= _core.NUM_BUCKETS:
        raise InvalidArgumentError(f"rewrite: num_files must be from 1 to {_core.NUM_BUCKETS}, got {num_files}")
    with closing(open_source(source)) as opened:
        manifest = opened.manifest
    return write_blocks(read_blocks(source), target, manifest, ranges=bucket_ranges(num_files))


def write_blocks(
    blocks: Iterator[RowBlock], target: SnapshotPath, manifest: SnapshotManifest, *, ranges: Iterable[tuple[int, int]]
) -> SnapshotManifest:
    """Writes a snapshot of these blocks, which ascend by bucket.

    Args:
        blocks: Of the tables that the manifest lists.
        target: Path of the snapshot; its present snapshot is replaced.
        manifest: Everything of the manifest except its files and rows.
        ranges: Buckets of each file, ascending.
    """
    taken = _Taken(blocks)
    with closing(open_destination(target, manifest.generation)) as destination:
        with writing_folder(target) as folder:
            files = tuple(
                write_file(folder, taken.until(end), (begin, end), manifest.snapshot_id) for begin, end in ranges
            )
        tables = tuple(replace(table, rows=taken.rows[number]) for number, table in enumerate(manifest.tables))
        written = replace(manifest, files=files, tables=tables)
        destination.publish(written)
    return written


class _Taken:
    """Blocks that are taken bucket range by bucket range."""

    def __init__(self, blocks: Iterator[RowBlock]) -> None:
        self._blocks = blocks
        self._next: RowBlock | None = next(blocks, None)
        self.rows: Counter[int] = Counter()
        """Table -> rows of the blocks that were taken."""

    def until(self, end: int) -> Iterator[RowBlock]:
        while self._next is not None and self._next.bucket < end:
            if self._next.kind in {BlockKind.FULL, BlockKind.SERVING}:
                self.rows[self._next.table] += self._next.count
            yield self._next
            self._next = next(self._blocks, None)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    with named_errors(str(path), "read"):
        try:
            file = path.open("rb")
        except FileNotFoundError as error:
            raise NotFoundError(f"file '{path}': is missing") from error
        with file:
            yield file


def _file_blocks(path: Path, entry: FileEntry, snapshot_id: int, kinds: Collection[BlockKind]) -> Iterator[RowBlock]:
    with _opened(path) as file:
        for offset, length, _, _, _, kind, crc, _ in _index(file, path, entry, snapshot_id):
            if kind not in kinds:
                continue
            file.seek(offset)
            data = file.read(length)
            if len(data) != length or data[-TRAILER.size :] != TRAILER.pack(crc, 0):
                raise DataLossError(f"file '{path}': offset {offset}: not the block that the index lists")
            if _core.crc32c(data[: -TRAILER.size]) != crc:
                raise DataLossError(f"file '{path}': offset {offset}: checksum of a block does not match")
            yield RowBlock(data)


def _index(file: BinaryIO, path: Path, entry: FileEntry, snapshot_id: int) -> Iterator[tuple[int, ...]]:
    """Returns the entries of a file's index, after checking header, footer and index against the manifest."""
    if file.seek(0, 2) != entry.bytes or entry.bytes < _HEADER.size + _FOOTER.size:
        raise DataLossError(f"file '{path}': {file.tell()} bytes, {entry.bytes} were written")
    file.seek(0)
    buckets = (entry.begin, entry.end)
    if file.read(_HEADER.size) != _header(snapshot_id, buckets):
        raise DataLossError(f"file '{path}': offset 0: not the header of a file of this snapshot")
    file.seek(entry.bytes - _FOOTER.size)
    footer = file.read(_FOOTER.size)
    begin, count = _FOOTER.unpack(footer)[:2]
    if footer != _footer(begin, count, snapshot_id, buckets, entry.index_crc32c):
        raise DataLossError(f"file '{path}': offset {entry.bytes - _FOOTER.size}: not the footer of this snapshot")
    file.seek(begin)
    index = file.read(count * _INDEX.size)
    if _core.crc32c(index) != entry.index_crc32c:
        raise DataLossError(f"file '{path}': offset {begin}: checksum of the index does not match")
    return _INDEX.iter_unpack(index)


def write_file(folder: Path, blocks: Iterable[RowBlock], buckets: tuple[int, int], snapshot_id: int) -> FileEntry:
    """Writes one bucket file of these blocks, which ascend by bucket; synced."""
    name = file_name(*buckets, snapshot_id)
    head = _header(snapshot_id, buckets)
    index, rows, offset = bytearray(), 0, len(head)
    with named_errors(str(folder / name), "written"), (folder / name).open("wb") as file:
        file.write(head)
        for block in blocks:
            crc, _ = TRAILER.unpack(block.data[-TRAILER.size :])
            index += _INDEX.pack(offset, len(block.data), block.bucket, block.table, block.count, block.kind, crc, 0)
            rows += block.count if block.kind in {BlockKind.FULL, BlockKind.SERVING} else 0
            offset += file.write(block.data)
        file.write(index)
        index_crc = _core.crc32c(bytes(index))
        count = len(index) // _INDEX.size
        file.write(_footer(offset, count, snapshot_id, buckets, index_crc))
        size = file.tell()
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(name=name, begin=buckets[0], end=buckets[1], bytes=size, index_crc32c=index_crc, rows=rows)


def _header(snapshot_id: int, buckets: tuple[int, int]) -> bytes:
    head = _HEADER.pack(_HEADER_MAGIC, _VERSION, 0, snapshot_id, *buckets, 0, 0)
    return head[:24] + struct.pack("<II", _core.crc32c(head[:24]), 0)


def _footer(offset: int, count: int, snapshot_id: int, buckets: tuple[int, int], index_crc: int) -> bytes:
    foot = _FOOTER.pack(offset, count, snapshot_id, *buckets, index_crc, 0, _VERSION, 0, _FOOTER_MAGIC)
    return foot[:36] + struct.pack("<I", _core.crc32c(foot[:36])) + foot[40:]
