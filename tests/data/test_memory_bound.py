"""The memory of a pipeline is what its buffers hold, however long the stream."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os
from monolith.data import GeneratedDataset, Records

def resident():  # now: the largest so far was reached while torch was imported
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

def block(number):  # a mebibyte, each of its own memory
    return Records.from_list([number.to_bytes(8, "little") * 128] * 1024)

def read(mebibytes, keep):
    kept, records, most = [], 0, 0
    dataset = GeneratedDataset(block, mebibytes).shuffle(4096).batch(500).prefetch(4).map(lambda r: r).prefetch(4)
    with dataset.read() as reading:
        for piece in reading:
            records += len(piece)
            most = max(most, resident())
            kept.extend([piece] if keep else [])
    return records, most

read(8, keep=False)
before = resident()
records, bounded = read(200, keep=False)
_, unbounded = read(200, keep=True)
print(records, bounded - before, unbounded - before)
"""


@pytest.mark.slow
def test_a_long_stream_needs_no_more_memory_than_a_short_one() -> None:
    output = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout
    records, bounded, unbounded = (float(number) for number in output.split())
    assert records == 200 * 1024
    assert bounded < 40  # windows of 4 MiB and some batches of half a MiB, with what the allocator leaves between them
    assert unbounded > 150  # the measure sees what is kept
