"""Every target of fuzz/ has something to begin with, which its parser takes."""

from __future__ import annotations

import struct
from pathlib import Path

from data.framed_files import samples
from fuzz_seeds import SEEDS
from monolith import _core
from monolith.data import BadRecords, Framing, Ids, Parser, split_records
from monolith.tables import PackedBlocks, RowBlock

FUZZ = Path(__file__).resolve().parent.parent / "fuzz"


def test_every_target_has_its_seeds() -> None:
    assert sorted(SEEDS) == sorted(path.stem for path in FUZZ.glob("*.cc"))
    assert all(len(list(seeds())) > 3 for seeds in SEEDS.values())


def test_the_seeds_are_intact() -> None:
    for seed in SEEDS["samples"]():
        sample = ("instance", "example_batch", "example", "tf_example")[seed[0]]
        assert Parser(sample, [Ids("nobody")], bad=BadRecords()).parse([seed[1:]]).num_rows > 0
    for seed in SEEDS["frames"]():
        framing = Framing((0, 1, 2, 4, 8, 12, 16, 20, 24, 28)[seed[0]])
        assert list(split_records(seed[2:], framing)) == samples(4)
    for seed in SEEDS["row_blocks"]():
        if seed[0] == 2:
            RowBlock(seed[1:])
        if seed[0] == 6:
            assert PackedBlocks(seed[1:]).count > 1
    for seed in SEEDS["wire"]():
        body_bytes, head_bytes, _, crc = struct.unpack_from("<QIII", seed, 2 + 16)
        assert crc == _core.crc32c(seed[2 : 2 + 32])
        assert seed[0] == 1 or len(seed) == 2 + 40 + head_bytes + body_bytes
    *_, packed = SEEDS["record_files"]()
    assert len(_core.snappy_uncompress(packed[1:])) > 20
