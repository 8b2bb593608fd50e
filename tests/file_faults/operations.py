"""The file operations of a process: counted, made to fail, and written down. See operations.c.

A process that is started with `preload` in its environment has an `Operations` that works; others have none.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from monolith import environment

SOURCE = Path(__file__).with_name("operations.c")
_HEAD, _SIZES = struct.Struct("<cI"), struct.Struct("<qQ")


def build(folder: Path) -> Path:
    """Compiles the library into a folder."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        if environment.get("CI"):
            raise FileNotFoundError("no C compiler; .ci/run installs one")
        pytest.skip("a C compiler is not installed; on Debian: apt-get install gcc libc6-dev")
    library = folder / "operations.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(library), str(SOURCE), "-ldl"],
        check=True,
    )
    return library


def preload(library: Path) -> dict[str, str]:
    """The environment of a process that is to be watched."""
    return {**os.environ, "LD_PRELOAD": str(library)}  # noqa: TID251 - a child's is its parent's, and more


@dataclass(frozen=True, slots=True)
class Change:
    """One operation that changed the folder."""

    kind: str
    """c: a file was made; t: cut to `offset` bytes; w: `data` written at `offset`; s: synced; r: renamed to `data`;
    l: linked to `data`; u: removed; m: a folder was made."""
    path: str
    offset: int
    data: bytes


def read_record(path: Path) -> list[Change]:
    """What was written down, in order."""
    text, place, changes = path.read_bytes(), 0, []
    while place < len(text):
        kind, length = _HEAD.unpack_from(text, place)
        place += _HEAD.size
        name = text[place : place + length].decode()
        offset, size = _SIZES.unpack_from(text, place + length)
        place += length + _SIZES.size
        changes.append(Change(kind.decode(), name, offset, text[place : place + size]))
        place += size
    return changes


class Operations:
    """Those of this process, which was started with the library."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self._library.faults_counted.restype = ctypes.c_long
        self._library.faults_choose.argtypes = [ctypes.c_long, ctypes.c_int]
        self._library.faults_place.restype = ctypes.c_char_p

    @contextmanager
    def failing(self, folder: Path, number: int, error: int) -> Iterator[None]:
        """The operation of this number below the folder fails with this error; 0 interrupts the process behind it."""
        self._library.faults_watch(str(folder).encode())
        self._library.faults_choose(number, error)
        try:
            yield
        finally:
            self._library.faults_choose(0, 0)
            self._library.faults_watch(b"")

    @property
    def failed_at(self) -> str:
        """Which operation was chosen last, if there was one of that number, and the path in the folder."""
        return str(self._library.faults_place().decode())

    @contextmanager
    def recorded(self, folder: Path, record: Path) -> Iterator[None]:
        """Changes of the folder are written down."""
        with record.open("wb") as file:
            self._library.faults_watch(str(folder).encode())
            self._library.faults_record(file.fileno())
            try:
                yield
            finally:
                self._library.faults_record(-1)
                self._library.faults_watch(b"")
