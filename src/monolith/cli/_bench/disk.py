"""Folders, sizes and plain transfers of the disk that saving is measured on."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from monolith.cli._bench.skip import RowSkippedError

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK_BYTES: Final = 8 << 20


@contextmanager
def scratch_folder(directory: str, *, needed_bytes: int) -> Iterator[Path]:
    """Yields an empty folder on the measured disk, removed at the end."""
    free = shutil.disk_usage(directory).free
    if free < needed_bytes:
        raise RowSkippedError(
            f"needs {needed_bytes / 2**30:.1f} GiB in {directory}, {free / 2**30:.1f} GiB are free; give --directory"
        )
    with tempfile.TemporaryDirectory(prefix="monolith-bench-", dir=directory) as folder:
        yield Path(folder)


def files_under(folder: Path) -> list[Path]:
    """Returns every file below a folder, in the order of their names."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def bytes_of(files: list[Path]) -> int:
    """Returns the total size of files."""
    return sum(file.stat().st_size for file in files)


def write_plainly(file: Path, num_bytes: int) -> None:
    """Writes one sequential file of `num_bytes` random bytes, which is on disk when the call returns."""
    chunk = memoryview(np.random.default_rng(0).bytes(CHUNK_BYTES))
    with file.open("wb", buffering=0) as out:
        left = num_bytes
        while left > 0:
            left -= out.write(chunk[:left])
        os.fsync(out.fileno())


def read_plainly(files: list[Path]) -> int:
    """Reads the files one after the other and returns how many bytes came."""
    buffer, total = bytearray(CHUNK_BYTES), 0
    for file in files:
        with file.open("rb", buffering=0) as source:
            while got := source.readinto(buffer):
                total += got
    return total
