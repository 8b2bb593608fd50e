"""Writes records to a file: the framings and compressions that are worth writing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self

from monolith import _core
from monolith.data.records.compression import Compression, new_compressor
from monolith.data.records.framing import Framing
from monolith.data.sources.file_patterns import require_known_url
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.files import refuse_special_file, storage_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from monolith.files import NewFile

_GATHERED = 1 << 20


class RecordWriter:
    """Writes one file atomically: it appears when the writer is closed, or not at all.

    A context manager; an exception inside leaves no file. Not thread-safe.

    Args:
        path: A local path, or a URL of fsspec.
        framing: `PLAIN`, `SORT_ID` or `TFRECORD`; the others are read-only, so that no new files of them are written.
        compression: Compression of the stream.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        framing: Framing | str = Framing.PLAIN,
        *,
        compression: Compression | str = Compression.FROM_NAME,
    ) -> None:
        self.path = os.fspath(path)
        self.framing = Framing.of(framing)
        if not self.framing.is_written:
            names = ", ".join(framing.name for framing in Framing if framing.is_written)
            raise InvalidArgumentError(f"framing {self.framing.name} is only read; write one of {names}")
        self._compressor = new_compressor(Compression.of(compression).resolve(self.path))
        self._file: NewFile | None = self._open()
        self._pending = bytearray()
        self.records = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def write(self, record: bytes, *, sort_id: bytes = b"") -> None:
        """Appends a record; a sort id is for the framing that has one."""
        if self._file is None:
            raise FailedPreconditionError(f"file '{self.path}': the writer is closed")
        if sort_id and self.framing is not Framing.SORT_ID:
            raise InvalidArgumentError(f"framing {self.framing.name} has no sort id, got one of {len(sort_id)} bytes")
        length = len(record).to_bytes(8, "little")
        if self.framing is Framing.TFRECORD:
            self._pending += length + _core.masked_crc32c(length).to_bytes(4, "little")
            self._pending += record
            self._pending += _core.masked_crc32c(record).to_bytes(4, "little")
        else:
            if self.framing is Framing.SORT_ID:
                self._pending += len(sort_id).to_bytes(8, "little") + sort_id
            self._pending += length
            self._pending += record
        self.records += 1
        if len(self._pending) >= _GATHERED:
            self._write_pending(self._file)

    def close(self) -> None:
        """Finishes the file and gives it its name; does nothing the second time."""
        if self._file is None:
            return
        try:
            self._write_pending(self._file)
            if self._compressor is not None:
                self._file.write(self._compressor.flush())
            self._file.commit()
        except BaseException:
            self.abort()
            raise
        self._file = None

    def abort(self) -> None:
        """Aborts the write, and removes what was written so far."""
        file, self._file = self._file, None
        if file is not None:
            file.discard()

    def _open(self) -> NewFile:
        if "://" in self.path:
            require_known_url(self.path)
        refuse_special_file(self.path)
        storage, name = storage_of(self.path)
        try:
            return storage.begin(name)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, self.path) from error

    def _write_pending(self, file: NewFile) -> None:
        data = bytes(self._pending)
        self._pending.clear()
        file.write(data if self._compressor is None else self._compressor.compress(data))


def write_examples(
    path: str | os.PathLike[str],
    records: Iterable[bytes],
    framing: Framing | str = Framing.PLAIN,
    *,
    compression: Compression | str = Compression.FROM_NAME,
) -> int:
    """Writes records to a file and returns how many."""
    with RecordWriter(path, framing, compression=compression) as writer:
        for record in records:
            writer.write(record)
    return writer.records
