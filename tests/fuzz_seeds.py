"""What the targets of fuzz/ begin with: messages and files of the tests, behind the bytes that choose their parser."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from data.framed_files import framed, samples
from data.test_parser_fuzz import records_of
from monolith import _core
from monolith.data import Framing
from monolith.online.joiner.protos.join_event_pb2 import JoinEvent
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
        blocks = [block for _, block in _blocks_of(path.read_bytes())]
        yield from (b"\x02" + block for block in blocks)
        yield b"\x06" + b"".join(blocks)


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


def _join_events() -> Iterator[bytes]:
    def event(item: int = 7, actions: Sequence[int] = (), sample: bytes = b"") -> bytes:
        made = JoinEvent(request_id=b"request", item_id=item, time_ms=1_700_000_000_000, actions=actions, sample=sample)
        return made.SerializeToString()

    yield event(sample=samples(1)[0])
    yield event(actions=[1, 2, 300])
    yield event(actions=[1], sample=b"both")
    yield event(2**63, actions=[0])


def _json_requests() -> Iterator[bytes]:
    yield b'{"instances": [{"user": [1, 2], "age": 0.5}, {"age": 2, "user": []}], "signature_name": "a"}'
    yield b'{"inputs": {"user": ["ann", "b\\u00e9\\ud83d\\ude00"], "tags": [[1], 2, []], "shape": [[[1], [-4e5]]]}}'
    yield b'{"instances": [{"b64": "Zm9v"}, "text", null, true, {"x": {"y": [false]}}]}'
    yield b'{"inputs": {"examples": {"b64": "AAAA"}}}'
    yield b'{"inputs": [18446744073709551615, -9223372036854775808, 1e400]}'


def _wire() -> Iterator[bytes]:
    stamp = struct.pack("<qqI3sq", 3, 7, 3, b"pos", 0)
    body = struct.pack("<2q2I", 5, 9, 904 * 2, 2)
    sizes = struct.pack("<IQB", 1, 2, 0)
    pull = struct.pack("<qqqqQB", 3, 1, -1, 0, 1, 0) + sizes
    push = struct.pack("<qqq", 1, 7, -1) + stamp
    push += struct.pack("<qf3BIQIQQ", 0, 1.0, 0, 0, 0, 2, 1, 1_700_000_000, 4, 0) + sizes + struct.pack("<IQ", 1, 1)
    greeting = struct.pack("<I6sI5s", 6, b"secret", 5, b"rows\n")
    calls = [
        _frame(1, greeting),
        _frame(0, struct.pack("<II2s", 8, 2, b"no")),
        _frame(16, struct.pack("<qq", 3, 0)),
        _frame(17, pull, body),
        _frame(18, push, body + struct.pack("<2fI4f", 0.1, 0.1, 1_700_000_000, 1.0, 2.0, 3.0, 4.0)),
        _frame(19, struct.pack("<qIQ", 3, 1, 1)),
        _frame(20, struct.pack("<qq", 3, 1)),
    ]
    for call in calls:
        yield b"\x00\x64" + call
    yield b"\x01\x64" + b"".join(calls)


def _frame(kind: int, head: bytes, body: bytes = b"") -> bytes:
    """docs/formats/frames.md has the grammar."""
    front = struct.pack("<4sHHQQII", b"MMLF", _core.FRAME_VERSION, kind, 1, len(body), len(head), 0)
    return front + struct.pack("<II", _core.crc32c(front), 0) + head + body


def _blocks_of(file: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and bytes of each block of a bucket file; docs/formats/snapshot.md says where they are."""
    index, entries = struct.unpack_from("<QQ", file, len(file) - 48)
    for number in range(entries):
        offset, length, _, _, _, kind = struct.unpack_from("<QQIIII", file, index + 40 * number)
        yield kind, file[offset : offset + length]


SEEDS: dict[str, Callable[[], Iterator[bytes]]] = {
    "filters": _filters,
    "frames": _frames,
    "join_events": _join_events,
    "json_requests": _json_requests,
    "record_files": _record_files,
    "row_blocks": _row_blocks,
    "samples": _samples,
    "wire": _wire,
}
"""By the name of the target."""
