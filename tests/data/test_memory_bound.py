"""The memory of a pipeline is what its buffers hold, however long the stream."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource
import numpy as np
from monolith.data import GeneratedDataset, Records

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

def block(number):  # a mebibyte, each of its own memory
    return Records.from_list([number.to_bytes(8, "little") * 128] * 1024)

def read(mebibytes, keep):
    kept, records = [], 0
    dataset = GeneratedDataset(block, mebibytes).shuffle(4096).batch(500).prefetch(4).map(lambda r: r).prefetch(4)
    with dataset.read() as reading:
        for piece in reading:
            records += len(piece)
            kept.extend([piece] if keep else [])
    return records

read(8, keep=False)
before = peak()
records = read(200, keep=False)
bounded = peak() - before
read(200, keep=True)
print(records, bounded, peak() - before)
"""


def test_a_long_stream_needs_no_more_memory_than_a_short_one() -> None:
    output = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout
    records, bounded, unbounded = (float(number) for number in output.split())
    assert records == 200 * 1024
    assert bounded < 40  # windows of 4 MiB and some batches of half a MiB, with what the allocator leaves between them
    assert unbounded > 100  # the measure sees what is kept
