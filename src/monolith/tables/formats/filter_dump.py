"""Reads and writes checkpoints of ByteDance Monolith's occurrence filters: one file `<base>-%05d-of-%05d` per split.

They are read as counts in cells, and not into a `SlidingHashFilter`: upstream places a cell by a hash with another seed
in every process, so the id of a count cannot be recovered, not even by upstream after a restart. The files are good for
three things: to see how full a filter was, to copy them, and to give upstream, which does not restore without them, the
empty filters that belong to an exported table. Bytes: docs/formats/filter_dump.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError

from monolith import _core
from monolith.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError
from monolith.files import begin_file, open_storage
from monolith.tables.formats.sharded_files import refuse_other_totals, shard_path, shards_of
from monolith.tables.protos import hash_filter_pb2 as messages

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from numpy.typing import NDArray

_FILL_RATE = 1.2
_SPARE_CELLS = 64
"""Additional cells at the end of a split, for walks that begin in its last cells."""
_CELLS_PER_RECORD = 10_000
_FORWARD_STEPS = 2
_PROBE_LIMIT = 16
_SMALLEST_CAPACITY = 300
_FEWEST_SPLITS, _MOST_SPLITS = 5, 1000
_SHAPE = ("split_num", "max_forward_step", "max_backward_step", "max_step")
"""Fields in which a restored filter must equal the live one."""
_OF_RING = (*_SHAPE, "head", "head_increment", "failure_count")
_OF_SPLIT = ("failure_count", "total_size", "num_elements", "fill_rate")
"""Fields of a filter and of a split that the messages have by the same names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterDumpSplit:
    """One part of the ring."""

    failure_count: int = 0
    """How often an id found no cell in it."""
    total_size: int
    """Cells in which the search for an id may begin."""
    num_elements: int = 0
    """Cells in use, as upstream counted them: without a lock, and at most its capacity."""
    fill_rate: float = _FILL_RATE
    cells: NDArray[np.uint16]
    """`total_size` + 64: low 4 bits a count, the others a signature; 0: free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterDump:
    """A complete filter, with upstream's numbers."""

    split_num: int
    max_forward_step: int = _FORWARD_STEPS
    max_backward_step: int
    max_step: int = _PROBE_LIMIT
    head: int = 0
    head_increment: int = 0
    failure_count: int = 0
    splits: tuple[FilterDumpSplit, ...]

    @classmethod
    def empty(cls, capacity: int = 300_000_000, split_num: int = 7) -> FilterDump:
        """Returns a filter without counts, of the sizes that upstream uses."""
        if capacity < 1:
            raise InvalidArgumentError(f"filter dump: capacity must be at least 1, got {capacity}")
        if not _FEWEST_SPLITS <= split_num <= _MOST_SPLITS:
            raise InvalidArgumentError(
                f"filter dump: split_num must be from {_FEWEST_SPLITS} to {_MOST_SPLITS}, got {split_num}"
            )
        share = max(capacity, _SMALLEST_CAPACITY) // (split_num - _FORWARD_STEPS + 1)
        total_size = int(share * _FILL_RATE)
        cells = np.zeros(total_size + _SPARE_CELLS, np.uint16)
        return cls(
            split_num=split_num,
            max_backward_step=split_num - _FORWARD_STEPS,
            splits=(FilterDumpSplit(total_size=total_size, cells=cells),) * split_num,
        )


def read_filter_dump(base: str | os.PathLike[str], *, live: FilterDump | None = None) -> FilterDump:
    """Reads the files `<base>-*`.

    Args:
        base: Path up to the ``-00000-of-00007`` part.
        live: The filter to replace; a dump whose ring has another shape is rejected, as upstream does.

    Raises:
        InvalidArgumentError: The set of files is incomplete, or has another number of splits.
        FailedPreconditionError: A record is not a filter message.
        DataLossError: A file is damaged, or its records do not form a split; names the file.
        ResourceExhaustedError: The dump does not fit ``live``.
    """
    files = shards_of(Path(base))
    read = [_read_split(file) for file in files]
    for file, (shape, _) in zip(files, read, strict=True):
        if shape.split_num != len(files):
            raise InvalidArgumentError(
                f"{base}: {shape.split_num} splits by {file.name}, but there are {len(files)} files"
            )
        if shape != read[0][0]:
            raise DataLossError(f"{file}: describes another filter than {files[0].name}")
    dump = replace(read[0][0], splits=tuple(split for _, split in read))
    for name in _SHAPE if live is not None else ():
        expected, got = getattr(live, name), getattr(dump, name)
        if expected != got:
            raise ResourceExhaustedError(
                f"{name}: {expected} does't match with : {got} read from hash filter checkpoint file."
            )
    return dump


def write_filter_dump(base: str | os.PathLike[str], dump: FilterDump) -> list[Path]:
    """Writes a filter to `<base>-%05d-of-%05d`; its folder is created, and a failure leaves no file.

    Raises:
        InvalidArgumentError: The number of splits or cells differs from the dump's own numbers; nothing is written.
        AlreadyExistsError: Files of the base belong to a dump of another number of splits.
    """
    base = Path(base)
    if len(dump.splits) != dump.split_num:
        raise InvalidArgumentError(f"filter dump: {dump.split_num} splits expected, got {len(dump.splits)}")
    for number, split in enumerate(dump.splits):
        if len(split.cells) != split.total_size + _SPARE_CELLS:
            expected = split.total_size + _SPARE_CELLS
            raise InvalidArgumentError(
                f"filter dump: split {number}: {expected} cells expected, got {len(split.cells)}"
            )
    folder = open_storage(base.parent)
    folder.make()
    refuse_other_totals(base, dump.split_num)
    written: list[Path] = []
    try:
        for number, split in enumerate(dump.splits):
            path = shard_path(base, number, dump.split_num)
            with begin_file(path) as temporary:
                _core.write_records(str(path), str(temporary.path), list(_records(dump, split)), snappy=False)
            written.append(path)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    folder.sync()
    return written


def _records(dump: FilterDump, split: FilterDumpSplit) -> Iterator[bytes]:
    meta = messages.HashFilterSplitMetaDump(
        **_values(split, _OF_SPLIT),
        sliding_hash_filter_meta=messages.SlidingHashFilterMetaDump(**_values(dump, _OF_RING)),
    )
    yield meta.SerializeToString()
    for offset in range(0, len(split.cells), _CELLS_PER_RECORD):
        data = split.cells[offset : offset + _CELLS_PER_RECORD].tolist()
        yield messages.HashFilterSplitDataDump(offset=offset, data=data).SerializeToString()


def _read_split(path: Path) -> tuple[FilterDump, FilterDumpSplit]:
    """Returns the filter of a file without its splits, and the split of the file."""
    records = _core.read_records(str(path), snappy=False)
    if not records:
        raise DataLossError(f"{path}: no record; a filter's file begins with the metadata of its split")
    meta, sliding = messages.HashFilterSplitMetaDump(), messages.SlidingHashFilterMetaDump()
    try:
        meta.ParseFromString(records[0])
        sliding.CopyFrom(meta.sliding_hash_filter_meta)
        cells = _cells(records[1:], path)
    except DecodeError as error:
        raise FailedPreconditionError(f"Unable to parse data. Data might be corrupted (file '{path}')") from error
    if not meta.HasField("sliding_hash_filter_meta"):
        raise DataLossError(f"{path}: no sliding_hash_filter_meta in its first record")
    if len(cells) != meta.total_size + _SPARE_CELLS:
        raise DataLossError(f"{path}: {meta.total_size + _SPARE_CELLS} cells expected, got {len(cells)}")
    return FilterDump(**_values(sliding, _OF_RING), splits=()), FilterDumpSplit(**_values(meta, _OF_SPLIT), cells=cells)


def _values(source: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def _cells(records: list[bytes], path: Path) -> NDArray[np.uint16]:
    parts: list[NDArray[np.uint16]] = [np.empty(0, np.uint16)]
    offset = 0
    for record in records:
        message = messages.HashFilterSplitDataDump.FromString(record)
        data = np.fromiter(message.data, np.uint32, len(message.data))
        if message.offset != offset:
            raise DataLossError(f"{path}: cells of offset {offset} expected, got {message.offset}")
        if len(data) and data.max() > np.iinfo(np.uint16).max:
            raise DataLossError(f"{path}: cells of 16 bits expected, got {data.max()}")
        parts.append(data.astype(np.uint16))
        offset += len(data)
    return np.concatenate(parts)
