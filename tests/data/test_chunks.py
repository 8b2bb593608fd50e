"""Memory comes back when, and only when, nothing looks at it any more."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy as np
import pytest

from data.framed_files import framed
from monolith import _core
from monolith.data import Framing, RecordReader
from monolith.data.records import reader as record_reader

SIZE = 3 << 20
"""Of a shelf that nothing else in these tests takes from."""


def address(array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.mark.slow
def test_memory_that_is_still_seen_is_not_handed_out_again() -> None:
    first = _core.take_chunk(SIZE)
    first[:] = 7
    piece = first[10:20][2:4]
    place = address(first)
    del first
    gc.collect()
    others = [_core.take_chunk(SIZE) for _ in range(20)]
    for other in others:
        other[:] = 9
    assert place not in map(address, others)
    assert piece.tolist() == [7, 7]
    del piece
    gc.collect()
    assert address(_core.take_chunk(SIZE - 500)) == place


@pytest.mark.parametrize("size", [0, 1, 4096, SIZE + 1, 70 << 20])
def test_a_chunk_has_the_requested_size(size: int) -> None:
    chunk = _core.take_chunk(size)
    chunk[:] = 1
    assert chunk.shape == (size,)
    assert chunk.dtype == np.uint8


def test_arrays_may_be_dropped_in_any_thread() -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(300):
                mine = _core.take_chunk(40_000)
                mine[:] = number
                assert (mine == number).all()
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_blocks_that_are_kept_keep_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_reader, "_CHUNK", 4096)
    records = [number.to_bytes(4, "little") * 50 for number in range(2000)]
    (tmp_path / "x").write_bytes(framed(Framing.TFRECORD, records))
    with RecordReader(tmp_path / "x", "tfrecord", sample="plaintext") as reader:
        kept = [block for number, block in enumerate(reader.blocks()) if number % 3 == 0]
    with RecordReader(tmp_path / "x", "tfrecord", sample="plaintext") as reader:
        again = [list(block) for number, block in enumerate(reader.blocks()) if number % 3 == 0]
    assert [list(block) for block in kept] == again
