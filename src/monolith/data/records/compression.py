"""Compressed streams of records, read in pieces and written in one piece.

The codes are those of ByteDance Monolith. A stream that ends early or is not of its kind is a `DataLossError`, never a
short file.
"""

from __future__ import annotations

import enum
import zlib
from abc import ABC, abstractmethod
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol, Self

from monolith import _core
from monolith.errors import DataLossError, UnimplementedError

if TYPE_CHECKING:
    from collections.abc import Callable

_INPUT_STEP = 1 << 16
_OUTPUT_STEP = 4 << 20
_SNAPPY_BLOCK = 1 << 18
_LARGEST_SNAPPY_CHUNK = 64 << 20
_ZSTD_STEP = 1 << 12
"""A zstd block of 4 bytes may stand for 128 KiB; small steps bound the memory that a hostile file needs."""


class Compression(enum.Enum):
    """Compression of a stream of records."""

    FROM_NAME = 0
    """By the extension of the file's name: .snappy, .zst, .zstd, .gz, .gzip, .zlib; anything else is not compressed."""
    NONE = 1
    SNAPPY = 2
    """Blocks as Hadoop writes them; lengths are big-endian."""
    ZSTD = 3
    ZLIB = 4
    GZIP = 5

    @classmethod
    def of(cls, name: str | Self) -> Self:
        """Returns the compression of this name, case-insensitive; ``NO`` and ``UNKNOW`` are upstream's names of two."""
        if isinstance(name, cls):
            return name
        member = {"NO": "NONE", "UNKNOW": "FROM_NAME"}.get(str(name).upper(), str(name).upper())
        try:
            return cls[member]
        except KeyError:
            raise ValueError(f"compression must be one of {', '.join(m.name for m in cls)}, got {name!r}") from None

    def resolve(self, path: str) -> Compression:
        """Returns this compression, or the one of the file's extension."""
        if self is not Compression.FROM_NAME:
            return self
        return _BY_ENDING.get(PurePosixPath(path).suffix.lower(), Compression.NONE)


_BY_ENDING = {
    ".snappy": Compression.SNAPPY,
    ".zst": Compression.ZSTD,
    ".zstd": Compression.ZSTD,
    ".gz": Compression.GZIP,
    ".gzip": Compression.GZIP,
    ".zlib": Compression.ZLIB,
}
_MAGIC = {
    b"\x1f\x8b": Compression.GZIP,
    b"\x28\xb5\x2f\xfd": Compression.ZSTD,
    b"\x78\x01": Compression.ZLIB,
    b"\x78\x9c": Compression.ZLIB,
    b"\x78\xda": Compression.ZLIB,
}


def looks_like(head: bytes) -> Compression | None:
    """Returns the compression with the magic number of these first bytes of a file, or None."""
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


class EmptyStreamError(DataLossError):
    """A compressed stream without a single byte: cut off before its head, since even one of nothing has a head."""

    def __init__(self, compression: Compression) -> None:
        super().__init__(f"there are no bytes, and a {compression.name} stream of nothing has some (truncated)")


class ByteSource(Protocol):
    """Source of a stream: a binary file, or one of the readers here."""

    def read(self, size: int = ..., /) -> bytes:
        """Reads at most `size` bytes; empty at the end."""


def open_decompressed(source: ByteSource, compression: Compression) -> ByteSource:
    """Returns the uncompressed bytes of a stream, with the same `read`."""
    if compression is Compression.SNAPPY:
        return _SnappyReader(source)
    if compression in {Compression.ZLIB, Compression.GZIP}:
        bits = 15 if compression is Compression.ZLIB else 31
        return _StreamReader(source, lambda: zlib.decompressobj(bits), _INPUT_STEP, compression, _OUTPUT_STEP)
    if compression is Compression.ZSTD:
        return _StreamReader(source, _zstandard().ZstdDecompressor().decompressobj, _ZSTD_STEP, compression)
    return source


class _Buffered(ABC):
    """Hands out in pieces what `_fill` appends to `_pending`; `_fill` appends nothing at the end of the stream."""

    def __init__(self) -> None:
        self._pending = b""
        self._at = 0

    @abstractmethod
    def _fill(self) -> bytes: ...

    def read(self, size: int = -1, /) -> bytes:
        if self._at == len(self._pending):
            self._pending, self._at = self._fill(), 0
        end = len(self._pending) if size < 0 else min(len(self._pending), self._at + size)
        piece = self._pending[self._at : end]
        self._at = end
        return piece


class _StreamReader(_Buffered):
    """Reader of zlib, gzip and zstd: concatenated streams that mark their own end."""

    def __init__(
        self, source: ByteSource, new_stream: Callable[[], Any], step: int, kind: Compression, *limit: int
    ) -> None:
        super().__init__()
        self._source = source
        self._new_stream = new_stream
        self._stream = new_stream()
        self._step = step
        self._kind = kind
        self._limit = limit
        """Most bytes of a piece, for streams that take it: however well they are compressed."""
        self._started = False

    def _fill(self) -> bytes:
        while True:
            at_end = self._stream.eof
            rest: bytes = self._stream.unused_data if at_end else getattr(self._stream, "unconsumed_tail", b"")
            compressed = rest or self._source.read(self._step)
            if not compressed and not self._started:
                raise EmptyStreamError(self._kind)
            if not compressed and at_end:
                return b""
            if at_end:
                self._stream = self._new_stream()
            self._started = True
            try:
                output: bytes = self._stream.decompress(compressed, *self._limit)
            except Exception as error:  # zlib and zstandard have no common class of errors
                raise DataLossError(f"not a {self._kind.name} stream, or damaged: {error}") from error
            if output:
                return output
            if not compressed and not self._stream.eof:
                raise DataLossError(f"the {self._kind.name} stream ends before its end mark (truncated)")


class _SnappyReader(_Buffered):
    """Blocks of chunks: length of the block, then length and bytes of each chunk until the block is full."""

    def __init__(self, source: ByteSource) -> None:
        super().__init__()
        self._source = source
        self._left = 0
        self._started = False

    def _fill(self) -> bytes:
        while not self._left:
            head = self._take(4, "length of a snappy block", may_end=True)
            if not head and not self._started:
                raise EmptyStreamError(Compression.SNAPPY)
            if not head:
                return b""
            self._started = True
            self._left = int.from_bytes(head, "big")
        size = int.from_bytes(self._take(4, "length of a snappy chunk"), "big")
        if size > _LARGEST_SNAPPY_CHUNK:
            raise DataLossError(
                f"a snappy chunk of {size} bytes, the limit is {_LARGEST_SNAPPY_CHUNK}: not this stream"
            )
        chunk = _core.snappy_uncompress(self._take(size, "snappy chunk"))
        if not chunk or len(chunk) > self._left:
            raise DataLossError(f"a snappy chunk of {len(chunk)} bytes where {self._left} are left of its block")
        self._left -= len(chunk)
        return chunk

    def _take(self, size: int, part: str, *, may_end: bool = False) -> bytes:
        taken = b""
        while len(taken) < size:
            piece = self._source.read(size - len(taken))
            if not piece:
                if may_end and not taken:
                    return b""
                raise DataLossError(f"{part} of {size} bytes is cut off: {len(taken)} are left (truncated)")
            taken += piece
        return taken


class StreamCompressor(Protocol):
    """Compresses a stream piece by piece."""

    def compress(self, data: bytes, /) -> bytes:
        """Compresses data; returns the bytes to write so far."""

    def flush(self) -> bytes:
        """Returns the remaining bytes."""


def new_compressor(compression: Compression) -> StreamCompressor | None:
    """Returns a new compressor; None without compression."""
    if compression is Compression.SNAPPY:
        return _SnappyCompressor()
    if compression in {Compression.ZLIB, Compression.GZIP}:
        return zlib.compressobj(wbits=15 if compression is Compression.ZLIB else 31)
    if compression is Compression.ZSTD:
        compressor: StreamCompressor = _zstandard().ZstdCompressor().compressobj()
        return compressor
    return None


class _SnappyCompressor:
    """One chunk per block, of at most 256 KiB before compression; a stream of nothing is a block of no bytes."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._started = False

    def compress(self, data: bytes, /) -> bytes:
        self._pending += data
        self._started = self._started or bool(data)
        blocks = []
        while len(self._pending) >= _SNAPPY_BLOCK:
            blocks.append(self._block(bytes(self._pending[:_SNAPPY_BLOCK])))
            del self._pending[:_SNAPPY_BLOCK]
        return b"".join(blocks)

    def flush(self) -> bytes:
        rest = bytes(self._pending)
        self._pending.clear()
        if not self._started:
            return bytes(4)
        return self._block(rest) if rest else b""

    def _block(self, data: bytes) -> bytes:
        chunk = _core.snappy_compress(data)
        return len(data).to_bytes(4, "big") + len(chunk).to_bytes(4, "big") + chunk


def _zstandard() -> Any:
    try:
        import zstandard  # noqa: PLC0415 - an optional dependency, needed for this compression only
    except ImportError as error:
        raise UnimplementedError("zstd needs the zstandard package; run: pip install 'monolith-torch[zstd]'") from error
    return zstandard
