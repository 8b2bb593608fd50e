"""Copies the files of a recovery record of version 1 into the log. Grammar: docs/formats/recovery.md."""

from __future__ import annotations

import json
import logging
import re
import secrets
import struct
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from monolith import _core
from monolith.deltalog import IncrementKind
from monolith.errors import DataLossError
from monolith.files import LocalStorage, named_errors
from monolith.ps.recovery.entries import FORMAT_VERSION, RecordedState
from monolith.ps.recovery.record_log import CHUNK_BYTES
from monolith.tables.formats import HEADER as BLOCK_HEADER
from monolith.tables.formats import block_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monolith.ps.recovery.record_log import RecordBatch, RecordLog

_log = logging.getLogger(__name__)
_VERSION = 1
_HEADER = struct.Struct("<8sII")
_FOOTER = struct.Struct("<QQIIII8s")
_MAGIC = b"MONOREC\x00"


class OldFiles:
    """The files of one server. The record counts as long as its claim exists, which is removed first.

    Args:
        folder: Path of the folder.
        index: Index of the server.
        num_ps: Number of servers.
    """

    def __init__(self, folder: str, index: int, num_ps: int) -> None:
        self._storage = LocalStorage(Path(folder))
        self._path = Path(folder)
        self._prefix = f"ps-{index}-of-{num_ps}.record"
        self._claim = f"{self._prefix}.owner"
        self._name = re.compile(re.escape(self._prefix) + r"-\d{12}-[0-9a-f]{16}")
        self._claimed_before: bytes | None = None
        self.is_removed = False
        """Whether there was a record, which is removed."""

    def copy_to(self, log: RecordLog) -> None:
        """Copies the record, if there is one, after what the log has. Its process, if still alive, stops writing.

        Raises:
            OpError: the files cannot be read, or the log cannot be written.
        """
        if not self._storage.exists(self._claim):
            return
        self._claimed_before = self._storage.read(self._claim)
        self._storage.replace(self._claim, f"{secrets.randbits(63):016x}\n".encode())
        before: RecordedState | None = None
        for file in self._files():
            before = log.append(lambda batch, file=file, before=before: file.copied(batch, before))  # type: ignore[misc]

    def give_back(self) -> None:
        """Returns the claim to the process that had it."""
        if self._claimed_before is not None:
            self._storage.replace(self._claim, self._claimed_before)

    def remove(self) -> None:
        """Removes the files. REQUIRES: the log has what is still needed of them."""
        names = [name for name in self._storage.names() if name.startswith((f"{self._prefix}-", f"{self._prefix}."))]
        if self._claim in names:
            self.is_removed = True
            self._storage.remove(self._claim)
            self._storage.sync()
        for name in names:
            self._storage.remove(name)

    def _files(self) -> list[_OldFile]:
        """Returns the readable files in order."""
        owner = (self._claimed_before or b"").decode(errors="replace").strip()
        files: dict[int, _OldFile] = {}
        for name in self._storage.names():
            if not self._name.fullmatch(name):
                continue
            try:
                file = _OldFile(self._path / name)
            except DataLossError as error:
                _log.warning("%s; the file and all later ones are skipped", error)
                continue
            # If two processes wrote one number, the file of the last owner counts.
            number = file.meta["number"]
            if number not in files or name.endswith(owner):
                files[number] = file
        return [files[number] for number in sorted(files)]


class _OldFile:
    """One file. Its metadata is intact."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._origin = f"recovery record '{path}'"
        with named_errors(str(path), "read"):
            size = path.stat().st_size
        if size < _HEADER.size + _FOOTER.size:
            raise DataLossError(f"{self._origin}: it is cut off")
        header, footer = self._read(0, _HEADER.size), self._read(size - _FOOTER.size, size)
        self._end, text_bytes, self._crc, text_crc, footer_crc, version, magic = _FOOTER.unpack(footer)
        if magic != _MAGIC or _HEADER.unpack(header) != (_MAGIC, _VERSION, 0) or version != _VERSION:
            raise DataLossError(f"{self._origin}: it is cut off, or no part of a recovery record of version {_VERSION}")
        text = b"" if _core.crc32c(footer[:24]) != footer_crc else self._read(self._end, self._end + text_bytes)
        if not text or _core.crc32c(text) != text_crc:
            raise DataLossError(f"{self._origin}: the checksum of its metadata does not match")
        self.meta: dict[str, Any] = json.loads(text)

    def copied(self, batch: RecordBatch, before: RecordedState | None) -> RecordedState:
        """Copies rows and weights; returns the state. Of a damaged file only what others have remains."""
        is_whole = self._is_whole()
        if not is_whole:
            _log.warning("%s: the checksum of its bytes does not match; what it has is skipped", self._origin)
        document = {**self.meta, "version": FORMAT_VERSION, "dense": None}
        document["stores"] = {
            name: {**entry, "section": self._section(batch, entry["section"]) if is_whole else None}
            for name, entry in self.meta["stores"].items()
        }
        document["parts"] = {
            name: b64encode(self._read(offset, offset + size)).decode()
            for name, (offset, size) in self.meta["parts"].items()
            if is_whole
        }
        dense = self.meta["dense"]
        if dense is not None and dense["number"] == self.meta["number"] and is_whole:
            offset, size = dense["place"]
            records = [batch.add(IncrementKind.DENSE, chunk) for chunk in self._pieces(offset, offset + size)]
            document["dense"] = {**dense, "bytes": size, "records": records}
        elif dense is not None and before is not None and before.dense is not None:
            document["dense"] = before.dense.to_json()
        return RecordedState.from_bytes(json.dumps(document).encode())

    def _is_whole(self) -> bool:
        crc = 0
        for piece in self._pieces(0, self._end):
            crc = _core.crc32c_extend(crc, np.frombuffer(piece, np.uint8))
        return bool(crc == self._crc)

    def _section(self, batch: RecordBatch, section: dict[str, Any] | None) -> dict[str, Any] | None:
        if section is None:
            return None
        runs = (run for offset, size in section["places"] for run in self._blocks(offset, offset + size))
        return {**section, "records": [batch.add(IncrementKind.ROWS, run) for run in runs]}

    def _blocks(self, begin: int, end: int) -> Iterator[bytes]:
        """Yields row blocks, some at a time."""
        length = CHUNK_BYTES
        while begin < end:
            run = self._read(begin, min(end, begin + length))
            stop = 0
            while len(run) - stop >= BLOCK_HEADER.size and stop + block_bytes(run, stop) <= len(run):
                stop += block_bytes(run, stop)
            if stop:
                yield run[:stop]
                begin += stop
            elif begin + length >= end:
                raise DataLossError(f"{self._origin}: no complete row block at byte {begin}")
            else:
                length *= 2

    def _pieces(self, begin: int, end: int) -> Iterator[bytes]:
        for start in range(begin, end, CHUNK_BYTES):
            yield self._read(start, min(end, start + CHUNK_BYTES))

    def _read(self, begin: int, end: int) -> bytes:
        with named_errors(str(self._path), "read"), self._path.open("rb") as file:
            file.seek(begin)
            return file.read(end - begin)
