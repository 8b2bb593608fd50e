"""One file of a recovery record. Byte grammar: docs/formats/recovery.md.

A file is created atomically. Its metadata is checked when the file is found, its body before it is used.
"""

from __future__ import annotations

import json
import struct
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from monolith import _core
from monolith.errors import DataLossError
from monolith.ps.recovery.entries import Place, RecordMeta
from monolith.tables.formats import HEADER as BLOCK_HEADER
from monolith.tables.formats import block_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

FORMAT_VERSION = 1
"""Version of the record files. A server reads records of its own version only: they belong to one run, and a checkpoint
has older state. To change it: raise the number and describe the new format in docs/formats/recovery.md."""

HEADER = struct.Struct("<8sII")
FOOTER = struct.Struct("<QQIIII8s")
MAGIC = b"MONOREC\x00"
_GATHERED_BYTES = 1 << 20
_CHECKED_BYTES = 8 << 20


class RecoveryFileWriter:
    """A file being written; not thread-safe. Call `discard` to drop an unfinished file.

    Args:
        path: Path of the file.
        rate_bytes_per_second: Maximum rate; None: no limit.
    """

    def __init__(self, path: Path, *, rate_bytes_per_second: float | None = None) -> None:
        self._file = _core.OutputFile(str(path), past_cache=False)
        self._rate = rate_bytes_per_second
        self._began = time.monotonic()
        self._gathered: list[bytes] = []
        self._num_gathered = 0
        self._size = 0
        self._crc = 0
        self.append(HEADER.pack(MAGIC, FORMAT_VERSION, 0))

    @property
    def size(self) -> int:
        """Number of bytes appended so far."""
        return self._size + self._num_gathered

    def append(self, data: bytes) -> None:
        """Appends bytes; small ones are written together."""
        self._gathered.append(data)
        self._num_gathered += len(data)
        if self._num_gathered >= _GATHERED_BYTES:
            self._flush()

    def append_array(self, data: NDArray[np.uint8]) -> None:
        """Appends many bytes without a copy."""
        self._flush()
        for begin in range(0, len(data), _CHECKED_BYTES):
            self._write(data[begin : begin + _CHECKED_BYTES])

    def finish(self, meta: RecordMeta) -> int:
        """Makes the file durable; returns its size."""
        self._flush()
        text = json.dumps(meta.to_json(), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
        offset, body_crc = self._size, self._crc
        self._write(np.frombuffer(text, np.uint8))
        footer = (offset, len(text), body_crc, _core.crc32c(text))
        self._write(np.frombuffer(_footer(*footer), np.uint8))
        self._file.commit()
        return self._size

    def discard(self) -> None:
        """Removes the file."""
        self._file.discard()

    def _flush(self) -> None:
        if self._gathered:
            data = b"".join(self._gathered)
            self._gathered, self._num_gathered = [], 0
            self._write(np.frombuffer(data, np.uint8))

    def _write(self, data: NDArray[np.uint8]) -> None:
        self._file.append(data)
        self._crc = _core.crc32c_extend(self._crc, data)
        self._size += len(data)
        if self._rate is not None:
            ahead = self._size / self._rate - (time.monotonic() - self._began)
            if ahead > 0:
                time.sleep(min(ahead, 1.0))


class RecordFile:
    """An existing file. Its metadata is intact; `require_whole` checks its body.

    Raises:
        DataLossError: the file is damaged; gives the reason.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.size = path.stat().st_size
        except OSError as error:
            raise DataLossError(f"{self._origin}: it cannot be read: {error}") from error
        self._body_end, self._body_crc, self.meta = self._parse()

    size: int
    """Size in bytes."""

    def require_whole(self) -> None:
        """Verifies the checksum of all bytes.

        Raises:
            DataLossError: the checksum does not match.
        """
        crc = 0
        for begin in range(0, self._body_end, _CHECKED_BYTES):
            crc = _core.crc32c_extend(crc, self._read(begin, min(begin + _CHECKED_BYTES, self._body_end)))
        if crc != self._body_crc:
            raise DataLossError(f"{self._origin}: the checksum of its bytes does not match")

    def read(self, place: Place) -> NDArray[np.uint8]:
        """Returns the bytes at a place."""
        return self._read(place.offset, place.offset + place.bytes)

    def blocks(self, place: Place, most_bytes: int) -> Iterator[list[bytes]]:
        """Yields the row blocks at a place, which are adjacent, about `most_bytes` at a time.

        Raises:
            DataLossError: the bytes are no row blocks.
        """
        begin, end = place.offset, place.offset + place.bytes
        while begin < end:
            run = self._read(begin, min(end, begin + most_bytes))
            blocks, used = _split(run.data)
            if not blocks:
                size = block_bytes(run.data) if len(run) >= BLOCK_HEADER.size else end
                if begin + size > end:
                    raise DataLossError(f"{self._origin}: no complete row block at byte {begin}")
                blocks, used = _split(self._read(begin, begin + size).data)  # the block is larger than `most_bytes`
            yield blocks
            begin += used

    @property
    def _origin(self) -> str:
        return f"recovery record '{self.path}'"

    def _read(self, begin: int, end: int) -> NDArray[np.uint8]:
        data = np.empty(max(0, end - begin), np.uint8)
        try:
            with self.path.open("rb") as file:
                file.seek(begin)
                got = file.readinto(data.data)
        except OSError as error:
            raise DataLossError(f"{self._origin}: it cannot be read: {error}") from error
        if got != len(data):
            raise DataLossError(f"{self._origin}: bytes {begin} to {end} expected, got {got}")
        return data

    def _parse(self) -> tuple[int, int, RecordMeta]:
        smallest = HEADER.size + FOOTER.size
        if self.size < smallest:
            raise DataLossError(f"{self._origin}: at least {smallest} bytes expected, got {self.size}")
        magic, version, zero = HEADER.unpack(self._read(0, HEADER.size).tobytes())
        footer = self._read(self.size - FOOTER.size, self.size).tobytes()
        offset, size, body_crc, meta_crc, _, last_version, last_magic = FOOTER.unpack(footer)
        if magic != MAGIC or last_magic != MAGIC or zero != 0:
            raise DataLossError(f"{self._origin}: it is cut off, or no part of a recovery record")
        if version != FORMAT_VERSION or last_version != FORMAT_VERSION:
            raise DataLossError(f"{self._origin}: version {version}, this build reads version {FORMAT_VERSION}")
        if footer != _footer(offset, size, body_crc, meta_crc):
            raise DataLossError(f"{self._origin}: the checksum of its footer does not match")
        if offset < HEADER.size or offset + size + FOOTER.size != self.size:
            raise DataLossError(
                f"{self._origin}: the file has {self.size} bytes, but its footer places the metadata at offset"
                f" {offset}, length {size}"
            )
        text = self._read(offset, offset + size).tobytes()
        if _core.crc32c(text) != meta_crc:
            raise DataLossError(f"{self._origin}: the checksum of its metadata does not match")
        return offset, body_crc, self._meta(text, offset)

    def _meta(self, text: bytes, body_end: int) -> RecordMeta:
        try:
            meta = RecordMeta.from_json(_json(text))
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise DataLossError(f"{self._origin}: not the fields of a record: {error!r}") from error
        for place in meta.places:
            if place.offset < HEADER.size or place.offset + place.bytes > body_end:
                raise DataLossError(
                    f"{self._origin}: its metadata refers to {place}, but its rows end at byte {body_end}"
                )
        return meta


def _split(run: memoryview) -> tuple[list[bytes], int]:
    """Returns the complete blocks at the beginning, and their size in bytes."""
    blocks, stop = [], 0
    while len(run) - stop >= BLOCK_HEADER.size:
        end = stop + block_bytes(run, stop)
        if end > len(run):
            break
        blocks.append(bytes(run[stop:end]))
        stop = end
    return blocks, stop


def _json(text: bytes) -> Any:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError(f"an object expected, got {type(value).__name__}")
    return value


def _footer(offset: int, size: int, body_crc: int, meta_crc: int) -> bytes:
    begun = FOOTER.pack(offset, size, body_crc, meta_crc, 0, FORMAT_VERSION, MAGIC)
    return FOOTER.pack(offset, size, body_crc, meta_crc, _crc_of_footer(begun), FORMAT_VERSION, MAGIC)


def _crc_of_footer(footer: bytes) -> int:
    return _core.crc32c(footer[:24])
