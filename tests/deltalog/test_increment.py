"""A record is exactly what was written, or it is refused with a reason; its bytes are those of the stored vectors."""

from __future__ import annotations

import re
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltalog.increments import FULL, increment
from monolith import _core
from monolith.deltalog import IncrementKind
from monolith.deltalog.increment import FORMAT_VERSION, HEAD, MAGIC, decode, read_head
from monolith.errors import DataLossError, InvalidArgumentError

VECTORS = Path(__file__).parent / "vectors"
STORED = {
    "rows.v1": FULL,
    "opening.v1": increment(0, kind=IncrementKind.OPENING, base="base-7", payload=b"schema"),
    "opening_follows.v1": increment(8, generation=3, kind=IncrementKind.OPENING, follows=1, payload=b"schema"),
    "dense.v1": increment(5, part="dense", kind=IncrementKind.DENSE, needs={"model.0000-1024": 4}, payload=b"\x08"),
    "state.v1": increment(9, part="ps-1-of-4.0256-0512", kind=IncrementKind.STATE, payload=b"{}"),
}


@pytest.mark.parametrize("name", STORED)
def test_a_record_has_the_bytes_of_the_stored_vector(name: str) -> None:
    stored = bytes.fromhex((VECTORS / f"{name}.hex").read_text(encoding="ascii"))
    assert STORED[name].encode() == stored
    assert decode(stored, origin=name) == STORED[name]


def test_the_page_is_about_the_version_that_is_written(project_root: Path) -> None:
    page = (project_root / "docs" / "formats" / "delta_log.md").read_text(encoding="utf-8")
    assert f"# The delta log, version {FORMAT_VERSION}\n" in page
    assert f"magic {MAGIC:#x}" in page
    assert f"{HEAD.size:<6} n " in page
    for kind in IncrementKind:
        assert re.search(rf"\| {kind.value} {kind.name.lower()} \|", page), kind


@given(at=st.integers(0, len(FULL.encode()) - 1), flipped=st.integers(1, 255))
def test_no_flipped_byte_gets_through(at: int, flipped: int) -> None:
    data = bytearray(FULL.encode())
    data[at] ^= flipped
    with pytest.raises(DataLossError, match=r"^x: "):
        decode(bytes(data), origin="x")


@given(cut=st.integers(0, len(FULL.encode()) - 1))
def test_no_record_that_was_cut_or_continued_gets_through(cut: int) -> None:
    whole = FULL.encode()
    for data in (whole[:cut], whole + whole[: cut + 1]):
        with pytest.raises(DataLossError):
            decode(data, origin="x")


@given(data=st.binary(max_size=200))
def test_any_bytes_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(DataLossError, match=r"^x: "):
        decode(data, origin="x")


def test_a_length_is_not_believed_before_it_was_compared() -> None:
    head = bytearray(FULL.encode()[: HEAD.size])
    struct.pack_into("<Q", head, HEAD.size - 16, 1 << 60)
    struct.pack_into("<II", head, HEAD.size - 8, _core.crc32c(bytes(head[:-8])), 0)
    tracemalloc.start()
    with pytest.raises(DataLossError, match=f"at most {2**30} bytes"):
        decode(bytes(head) + b"\0" * 64, origin="x")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_head_holds_the_length_of_its_record() -> None:
    data = FULL.encode()
    head = read_head(data[: HEAD.size], origin="x")
    assert head.record_bytes == len(data)
    assert (head.number, head.generation, head.writer) == (41, 3, 0x1122334455667788)


def test_numbers_that_do_not_fit_are_refused_when_written() -> None:
    with pytest.raises(InvalidArgumentError, match="64 bits >= 0"):
        increment(-1).encode()
