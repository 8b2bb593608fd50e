"""The rows of a slot as ids and vectors: for nearest neighbours, other tools and inspection."""

from __future__ import annotations

import importlib
import json
import os
import tempfile
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias, cast

import numpy as np
import torch

from monolith.errors import InvalidArgumentError
from monolith.files import named_errors, replaced_file
from monolith.nn.embeddings.slot_address import rows_of_slot
from monolith.tables import ALL_BUCKETS
from monolith.tables.formats import BlockKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import Tensor

    from monolith.nn.embeddings.merge import PlacedSlot
    from monolith.tables import Cut, Schema

_BATCH_BYTES = 16 << 20
"""Size of the vectors that an export holds in memory: enough to write at the disk's speed."""


class SlotVectors(NamedTuple):
    """The rows of one slot in a consistent cut, by ascending id."""

    ids: Tensor
    """int64 [n]: ids as given to the model."""
    vectors: Tensor
    """float32 [n, dim]: the weights of their rows."""


def read_vectors(cut: Cut, schema: Schema, slot: PlacedSlot) -> SlotVectors:
    """Reads the rows of a slot into memory. While they are sorted, most vectors are in memory twice."""
    ids_of, parts = [], []
    for ids, vectors in _parts(cut, schema, slot):
        ids_of.append(ids)
        parts.append(vectors)
    ids = np.concatenate([np.empty(0, np.int64), *ids_of])
    order = np.argsort(ids)
    place = np.empty(len(ids), np.intp)
    place[order] = np.arange(len(ids))
    sorted_vectors = np.empty((len(ids), slot.dim), np.float32)
    end = len(ids)
    while parts:
        part = parts.pop()  # freed as soon as it was copied
        sorted_vectors[place[end - len(part) : end]] = part
        end -= len(part)
    return SlotVectors(torch.from_numpy(ids[order]), torch.from_numpy(sorted_vectors))


def export_vectors(cut: Cut, schema: Schema, slot: PlacedSlot, path: str | os.PathLike[str], *, step: int) -> int:
    """Writes the rows of a slot by ascending id; the suffix of the name selects the format. Releases the cut early.

    Only the ids and some megabytes are in memory: the vectors are spilled to an unnamed file in the same folder until
    all ids are read.

    Returns:
        Number of rows.
    """
    write = writer_for(path)  # before anything is read: an unknown format costs nothing
    with (
        replaced_file(path) as temporary,
        named_errors(str(path), "written"),
        tempfile.TemporaryFile(dir=Path(path).parent) as unsorted,
    ):
        ids = _spill(cut, schema, slot, unsorted)
        cut.release()
        order = np.argsort(ids)
        slices = tuple(slot.slot.slice_dims)
        head = VectorsHead(slot=slot.name, dim=slot.dim, slices=slices, step=step, rows=len(ids))
        write(temporary, head, ids[order], _ordered(unsorted, order, slot.dim))
        return len(ids)


def _parts(cut: Cut, schema: Schema, slot: PlacedSlot) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Yields ids and vectors, block by block, in the order of the store."""
    number = schema.names.index(slot.table)
    for block in cut.blocks(ALL_BUCKETS, state=True):
        if block.table == number and block.kind is BlockKind.FULL:
            chosen, ids = rows_of_slot(block, slot)
            weights = block.weights(slot.dim)
            yield ids, weights if chosen is None else weights[chosen]


def _spill(cut: Cut, schema: Schema, slot: PlacedSlot, file: BinaryIO) -> NDArray[np.int64]:
    ids_of = [np.empty(0, np.int64)]
    for ids, vectors in _parts(cut, schema, slot):
        file.write(vectors.data)
        ids_of.append(ids)
    file.flush()
    return np.concatenate(ids_of)


def _ordered(file: BinaryIO, order: NDArray[np.intp], dim: int) -> Iterator[NDArray[np.float32]]:
    """Yields the vectors of the file in another order, some megabytes at a time."""
    if not len(order):  # a file without bytes cannot be mapped
        return
    vectors = np.memmap(file, np.float32, "r", shape=(len(order), dim))
    held = max(1, _BATCH_BYTES // (4 * dim))
    for begin in range(0, len(order), held):
        yield vectors[order[begin : begin + held]]


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Batches: TypeAlias = Iterator[NDArray[np.float32]]
    WriteVectors: TypeAlias = "Callable[[Path, VectorsHead, NDArray[np.int64], Batches], None]"


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorsHead:
    """Metadata of a file of vectors."""

    slot: str
    dim: int
    slices: tuple[int, ...]
    """Dims of the parts of a vector that start and learn alike, end to end."""
    step: int
    """Steps that the rows had been trained."""
    rows: int


def writer_for(path: str | os.PathLike[str]) -> WriteVectors:
    """Returns the function that writes a file of this name.

    Raises:
        InvalidArgumentError: the name has another suffix.
    """
    end = Path(path).suffix.lower()
    writers: dict[str, WriteVectors] = {".parquet": write_parquet, ".npz": write_npz}
    if end not in writers:
        raise InvalidArgumentError(
            f"file '{os.fspath(path)}': the suffix of the name selects the format, expected one of"
            f" {', '.join(writers)}, got {end or 'none'!r}"
        )
    return writers[end]


def write_parquet(path: Path, head: VectorsHead, ids: NDArray[np.int64], batches: Batches) -> None:
    """Writes columns ``id`` int64 and ``vector``, a list of dim float32; the head is JSON in the metadata ``monolith``.

    Raises:
        ModuleNotFoundError: pyarrow is not installed; names the package to install.
    """
    arrow, parquet = _import_pyarrow()
    item = arrow.field("item", arrow.float32(), nullable=False)
    schema = arrow.schema(
        [
            arrow.field("id", arrow.int64(), nullable=False),
            arrow.field("vector", arrow.list_(item, head.dim), nullable=False),
        ],
        metadata={"monolith": json.dumps(asdict(head))},
    )
    begin = 0
    with parquet.ParquetWriter(path, schema) as writer:
        for vectors in batches:
            end = begin + len(vectors)
            listed = arrow.FixedSizeListArray.from_arrays(arrow.array(vectors.reshape(-1)), type=schema.types[1])
            table = arrow.Table.from_arrays([arrow.array(ids[begin:end]), listed], schema=schema)
            writer.write_table(table, row_group_size=len(vectors))
            begin = end


def write_npz(path: Path, head: VectorsHead, ids: NDArray[np.int64], batches: Batches) -> None:
    """Writes arrays ``ids`` int64 [n] and ``vectors`` float32 [n, dim] for `numpy.load`; ``head`` is JSON."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        _write_array(archive, "head", np.array(json.dumps(asdict(head))))
        _write_array(archive, "ids", ids)
        with archive.open("vectors.npy", "w", force_zip64=True) as member:
            shape = {"descr": "<f4", "fortran_order": False, "shape": (head.rows, head.dim)}
            np.lib.format.write_array_header_1_0(cast("Any", member), shape)
            for vectors in batches:
                member.write(np.ascontiguousarray(vectors, "<f4").data)


def _write_array(archive: zipfile.ZipFile, name: str, array: NDArray[Any]) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array(cast("BinaryIO", member), array)


def _import_pyarrow() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        message = (
            "a Parquet file of vectors needs pyarrow, which is not installed; run: pip install"
            " 'monolith-torch[parquet]', or write a .npz file"
        )
        raise ModuleNotFoundError(message, name=error.name) from error
