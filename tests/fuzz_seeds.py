"""What the targets of fuzz/ begin with: messages and files of the tests, behind the bytes that choose their parser."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from data.framed_files import framed, samples
from data.test_parser_fuzz import records_of
from monolith import _core
from monolith.data import Framing
from tables import entry_dump_reference as dump

_FORMATS = Path(__file__).parent / "format"
_FILTER_BLOCK = 4


def _samples() -> Iterator[bytes]:
    for number, sample in enumerate(("instance", "example_batch", "example", "tf_example")):
        for record in records_of(sample):
            yield bytes([number]) + record


def _frames() -> Iterator[bytes]:
    # In the order of the framings in fuzz/frames.cc.
    for number, parts in enumerate((0, 1, 2, 4, 8, 12, 16, 20, 24, 28)):
        yield bytes([number, 100]) + framed(Framing(parts), samples(4), sort_id=b"ab" if parts & 8 else b"")


def _row_blocks() -> Iterator[bytes]:
    for path in sorted(_FORMATS.glob("v*/snapshot/*.rows")):
        yield b"\x03" + path.read_bytes()
        for _, block in _blocks_of(path.read_bytes()):
            yield b"\x02" + block


def _filters() -> Iterator[bytes]:
    for path in sorted(_FORMATS.glob("v*/snapshot/*.rows")):
        for kind, block in _blocks_of(path.read_bytes()):
            if kind == _FILTER_BLOCK:
                (size,) = struct.unpack_from("<Q", block, 32)
                yield b"\x01" + block[48 : 48 + size]


def _record_files() -> Iterator[bytes]:
    adagrad = dump.message(1, dump.floats(1, [1.0, 2.0, 3.0]))
    entries = [dump.entry(key, [0.5] * 5, [b"", adagrad], 1_700_000_000) for key in (1, -2)]
    stream = b"".join(map(dump.framed, entries))
    packed = _core.snappy_compress(stream)
    yield b"\x00" + stream
    yield b"\x01" + len(stream).to_bytes(4, "big") + len(packed).to_bytes(4, "big") + packed
    yield from (b"\x02" + entry for entry in entries)
    yield b"\x03" + packed


def _blocks_of(file: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and bytes of each block of a bucket file; docs/formats/snapshot.md says where they are."""
    index, entries = struct.unpack_from("<QQ", file, len(file) - 48)
    for number in range(entries):
        offset, length, _, _, _, kind = struct.unpack_from("<QQIIII", file, index + 40 * number)
        yield kind, file[offset : offset + length]


SEEDS: dict[str, Callable[[], Iterator[bytes]]] = {
    "filters": _filters,
    "frames": _frames,
    "record_files": _record_files,
    "row_blocks": _row_blocks,
    "samples": _samples,
}
"""By the name of the target."""
