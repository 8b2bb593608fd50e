"""What a rank does in the tests of sharded stores over Gloo; run as ``sharded_suite.py FOLDER RANK NUM_RANKS SEED``."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from collective.ranks import meet, write_result
from collective.test_sharded_store import RankBatch, Step, train_rank
from monolith import collective
from monolith.collective import SerialExecutor

NUM_STEPS = 12


class GlooRank(NamedTuple):
    """This process."""

    rank: int
    training: SerialExecutor
    saving: SerialExecutor


def program_of(seed: int, num_ranks: int) -> list[Step]:
    """Batches of some hundred ids that ranks share, of ranks that are idle now and then."""
    rng = np.random.default_rng(seed)

    def batch() -> RankBatch | None:
        if rng.random() < 0.2:
            return None
        ids = tuple(tuple(rng.integers(0, 300, rng.integers(0, 400)).tolist()) for _ in range(4))
        return RankBatch(
            ids=ids,
            seed=int(rng.integers(2**16)),
            time=int(rng.integers(10**5, 2 * 10**5)),
            times_per_id=bool(rng.random() < 0.5),
            scale=float(rng.choice([1.0, 0.3])),
        )

    return [tuple(batch() for _ in range(num_ranks)) for _ in range(NUM_STEPS)]


def digest_of(found: dict[tuple[int, ...], object]) -> str:
    return hashlib.sha256(repr(sorted(found.items(), key=lambda item: item[0])).encode()).hexdigest()


if __name__ == "__main__":
    folder, rank, num_ranks, seed = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    meet(folder, rank, num_ranks)
    collective.init(timeout_seconds=100)
    here = GlooRank(rank, collective.training_line(), collective.saving_line())
    found = train_rank(here, program_of(seed, num_ranks))
    write_result(folder, rank, [len(found), digest_of(found)])
    collective.shutdown()
