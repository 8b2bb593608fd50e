"""Memory comes back when, and only when, nothing looks at it any more."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy as np
import pytest

from data.framed_files import framed
from monolith.data import Framing, RecordReader, record_reader
from monolith.data.chunk_pool import ChunkPool


def address(array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_that_is_still_seen_is_not_handed_out_again() -> None:
    pool = ChunkPool()
    first = pool.take(1000)
    first[:] = 7
    piece = first[10:20][2:4]
    place = address(first)
    del first
    gc.collect()
    second = pool.take(1000)
    second[:] = 9
    assert address(second) != place
    assert piece.tolist() == [7, 7]
    del piece
    gc.collect()
    assert address(pool.take(500)) == place


def test_memory_that_is_too_small_is_not_handed_out() -> None:
    pool = ChunkPool()
    pool.take(10)
    gc.collect()
    assert len(pool.take(5 << 20)) == 5 << 20


def test_arrays_may_be_dropped_in_any_thread() -> None:
    pool = ChunkPool()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(300):
                mine = pool.take(4096)
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
