"""Blocks of lines: every line once and whole, cut by where a block begins and nothing else."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith.data.sources.line_blocks import LineBlock, LineBlocks
from monolith.errors import DataLossError


class Pieces:
    """A stream that gives a few bytes at a time, as one that is decompressed does."""

    def __init__(self, data: bytes, most: int) -> None:
        self._file = io.BytesIO(data)
        self._most = most

    def read(self, size: int = -1, /) -> bytes:
        return self._file.read(min(size, self._most) if size >= 0 else self._most)


def blocks_of(data: bytes, size: int, *, quote: bytes | None = None, most: int | None = None) -> LineBlocks:
    stream = io.BytesIO(data) if most is None else Pieces(data, most)
    return LineBlocks(stream, block_bytes=size, max_line_bytes=1000, quote=quote)


def all_of(blocks: LineBlocks) -> list[LineBlock]:
    return list(iter(blocks.next_block, None))


LINES = st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"-")), max_size=20)


@given(LINES, st.integers(1, 40), st.booleans(), st.sampled_from([None, 1, 7]))
@settings(max_examples=200, deadline=None)
def test_every_line_comes_once_and_resuming_from_any_block_cuts_alike(
    lines: list[bytes], size: int, ends: bool, most: int | None
) -> None:
    data = b"\n".join(lines) + (b"\n" if ends and lines else b"")
    found = all_of(blocks_of(data, size, most=most))
    assert b"".join(bytes(block.data) for block in found) == data
    for block in found[:-1]:
        assert bytes(block.data).endswith(b"\n")
    for number, block in enumerate(found):
        before = data[: block.end - len(block.data)]
        assert block.line == before.count(b"\n")
        again = blocks_of(data, size, most=most)
        again.go_to(len(before), block.line)
        assert [bytes(each.data) for each in all_of(again)] == [bytes(each.data) for each in found[number:]]


def test_a_line_end_between_quotes_does_not_end_a_block() -> None:
    data = b'a,"x\ny"\nb,"z"\n'
    assert [bytes(block.data) for block in all_of(blocks_of(data, 6, quote=b'"'))] == [b'a,"x\ny"\n', b'b,"z"\n']
    assert bytes(all_of(blocks_of(data, 6))[0].data) == b'a,"x\n'


def test_a_line_that_was_taken_is_not_in_the_blocks() -> None:
    blocks = blocks_of(b"head\n1\n2", 100)
    assert blocks.take_line() == b"head\n"
    assert [(bytes(block.data), block.line, block.end) for block in all_of(blocks)] == [(b"1\n2", 1, 8)]
    assert blocks_of(b"", 9).take_line() == b""


def test_a_line_without_end_and_a_position_past_the_end_are_rejected() -> None:
    with pytest.raises(DataLossError, match="line 2 is longer than 1000 bytes"):
        all_of(blocks_of(b"1\n" + b"x" * 5000, 2))
    with pytest.raises(DataLossError, match="it ends at byte 3, and was read up to byte 9 before"):
        blocks_of(b"123", 2).go_to(9, 1)
