"""Named tensors in a safetensors file, written and read in one pass with a checksum.

The format is that of the safetensors package, whose own functions would read every byte a second time for the
checksum and copy every tensor once more; the tests compare both.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from monolith import _core
from monolith.errors import DataLossError, InvalidArgumentError
from monolith.files import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from monolith.checkpoint.manifest import CheckpointFile
    from monolith.files import Storage


_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
    "C64": torch.complex64,
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_LARGEST_HEADER = 100_000_000
"""The format's own limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSum:
    """Length and checksum of a file."""

    bytes: int
    crc32c: int
    """CRC-32C over the CRC-32Cs, 4 bytes each and little-endian, of the file's pieces of 4 MiB."""


class _Summing:
    """Checksum of pieces of any length."""

    def __init__(self) -> None:
        self._sums: list[int] = []
        self._open = 0
        """Checksum of the bytes after the last complete piece."""
        self.bytes = 0

    def add(self, data: memoryview | bytes) -> None:
        array = np.frombuffer(data, np.uint8)
        while len(array):
            missing = PIECE_BYTES - self.bytes % PIECE_BYTES
            self._open = _core.crc32c_extend(self._open, array[:missing])
            self.bytes += len(array[:missing])
            array = array[missing:]
            if self.bytes % PIECE_BYTES == 0:
                self._sums.append(self._open)
                self._open = 0

    def end(self) -> FileSum:
        is_whole = self.bytes % PIECE_BYTES == 0
        return _file_sum(self.bytes, self._sums if is_whole else [*self._sums, self._open])


def _file_sum(size: int, sums: list[int]) -> FileSum:
    return FileSum(bytes=size, crc32c=_core.crc32c(struct.pack(f"<{len(sums)}I", *sums)))


def sum_of(data: bytes) -> FileSum:
    """Returns size and checksum of bytes in memory."""
    summing = _Summing()
    summing.add(data)
    return summing.end()


def write_tensors(
    folder: Storage, name: str, tensors: Mapping[str, Tensor], *, bytes_per_second: float | None = None
) -> FileSum:
    """Writes the file, at most at the given rate; tensors are on the CPU or are copied there one at a time."""
    summing = _Summing()
    begun = time.monotonic()

    def pieces() -> Iterator[memoryview | bytes]:
        for piece in file_pieces(tensors):
            summing.add(piece)
            yield piece
            if bytes_per_second is not None:
                time.sleep(max(0.0, summing.bytes / bytes_per_second - (time.monotonic() - begun)))

    folder.write(name, pieces(), past_cache=bytes_per_second is not None)
    return summing.end()


def read_tensors(folder: Storage, name: str, expected: FileSum) -> dict[str, Tensor]:
    """Reads the tensors of a file, as views of one buffer.

    Raises:
        NotFoundError: the file is missing.
        DataLossError: the file is damaged.
    """
    place = folder.place(name)
    size = folder.size(name)
    if size != expected.bytes:
        raise DataLossError(f"file '{place}': {size} bytes, {expected.bytes} were written")
    buffer = large_buffer(size)
    if _file_sum(size, folder.read_summed(name, buffer.numpy())) != expected:
        raise DataLossError(f"file '{place}': checksum does not match (it was changed)")
    return tensor_views(buffer, f"file '{place}'")


def tensors_of(folder: Storage, entry: CheckpointFile | None) -> dict[str, Tensor]:
    """Reads the tensors of a file that a manifest lists; none if it lists none. Raises like `read_tensors`."""
    return {} if entry is None else read_tensors(folder, entry.name, FileSum(bytes=entry.bytes, crc32c=entry.crc32c))


def tensor_descriptions(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
    """Returns name -> dtype code and shape, as in the header of a file."""
    return {name: {"dtype": _code(name, tensor), "shape": list(tensor.shape)} for name, tensor in tensors.items()}


def _code(name: str, tensor: Tensor) -> str:
    if tensor.layout is not torch.strided or tensor.dtype not in _CODES:
        raise InvalidArgumentError(
            f"checkpoint: tensor {name!r} ({tensor.dtype}, {tensor.layout}) cannot be saved; dense tensors of"
            f" {', '.join(sorted(map(str, _CODES)))} can"
        )
    return _CODES[tensor.dtype]


def file_pieces(tensors: Mapping[str, Tensor]) -> Iterable[memoryview | bytes]:
    """Yields the bytes of a file, piece by piece."""
    # Wide types first, so that every tensor is aligned for its type; then by name.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, described in tensor_descriptions({name: tensors[name] for name in order}).items():
        size = tensors[name].numel() * tensors[name].element_size()
        header[name] = {**described, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for name in order:
        raw = tensors[name].cpu().contiguous().reshape(-1)
        if raw.numel():
            view = raw.view(torch.uint8).numpy().data
            for begin in range(0, len(view), PIECE_BYTES):
                yield view[begin : begin + PIECE_BYTES]


def tensor_views(buffer: Tensor, origin: str) -> dict[str, Tensor]:
    """Returns the tensors of the bytes of a file, which are not copied."""
    try:
        (length,) = struct.unpack("<Q", buffer[:8].numpy().tobytes())
        if not 0 < length <= min(_LARGEST_HEADER, len(buffer) - 8):
            raise ValueError(f"header of {length} bytes")  # noqa: TRY301 - all errors are reported in one place
        header = json.loads(buffer[8 : 8 + length].numpy().tobytes())
        data = buffer[8 + length :]
        return {name: _view(data, entry) for name, entry in header.items() if name != "__metadata__"}
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, struct.error) as error:
        raise DataLossError(f"{origin}: not a safetensors file: {error}") from error


def _view(data: Tensor, entry: Mapping[str, Any]) -> Tensor:
    begin, end = entry["data_offsets"]
    dtype, shape = _DTYPES[entry["dtype"]], list(map(int, entry["shape"]))
    size = math.prod(shape) * dtype.itemsize
    if not 0 <= begin <= end <= len(data) or end - begin != size:
        raise ValueError(f"offsets {begin}..{end} for {dtype} {shape}")
    raw = data[begin:end]
    if raw.storage_offset() % dtype.itemsize:  # a foreign writer that did not align
        raw = raw.clone()
    return raw.view(dtype).reshape(shape)


def tensors_to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Returns the bytes that a file of these tensors has.

    >>> tensors_from_bytes(tensors_to_bytes({"bias": torch.tensor([1.5])}), origin="here")
    {'bias': tensor([1.5000])}
    """
    return b"".join(file_pieces(tensors))


def tensors_from_bytes(data: bytes, *, origin: str) -> dict[str, Tensor]:
    """Returns the tensors of such bytes, as views of one copy of them.

    Raises:
        DataLossError: the bytes are no safetensors file; the message names `origin`.
    """
    return tensor_views(torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8), origin)


def large_buffer(size: int) -> Tensor:
    """Returns bytes on huge pages where the system has them: the first access then takes a tenth of the time."""
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    # The tensor keeps the mapping alive.
    return torch.frombuffer(memory, dtype=torch.uint8)
