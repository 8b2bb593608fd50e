"""Files of ids and vectors: Parquet for other tools, ``.npz`` for NumPy. The suffix of a name selects the format."""

from __future__ import annotations

import importlib
import json
import os
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, cast

import numpy as np

from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Batches: TypeAlias = Iterator[NDArray[np.float32]]
    WriteVectors: TypeAlias = "Callable[[Path, VectorsHead, NDArray[np.int64], Batches], None]"

__all__ = ["VectorsHead", "write_npz", "write_parquet", "writer_for"]


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
