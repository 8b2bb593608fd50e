"""What freshness and rows of one's own are worth: each example is predicted before it is learned from.

    python examples/online/proof.py sync                          # E3 of the paper: how often rows are taken over
    python examples/online/proof.py rows                          # E1: own rows beside hashed ids of equal memory
    python examples/online/proof.py sync --seeds 5 --out sync.html
    python examples/online/proof.py rows --movielens ml-100k      # or --criteo train.txt: files that you have

README.md beside it has the numbers to expect.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from monolith.data import SyntheticClicks
from monolith.validation import SyncRule, clicks, criteo, movielens, validate, write_page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monolith.validation import CopyOutcome, Traffic

DAY = 86_400
WARM_UP, SHARDS = 5 / 7, {"1/10": 10, "1/50": 50, "1/100": 100}  # of 7 days: every 5 h, every hour, every 30 minutes
DRIFTING = SyntheticClicks(
    num_users=2_000, num_items=500, num_tags=50, examples_per_day=28_000,
    item_life_days=2.0, user_life_days=10.0, drift_days=20.0,
)  # fmt: skip
PASSING_BY = SyntheticClicks(
    num_users=4_000, num_items=2_000, num_tags=50, examples_per_day=30_000,
    item_life_days=3.0, user_life_days=10.0, drift_days=20.0, visitors=0.5,
)  # fmt: skip
LEAST_GAIN, LEAST_STEP, SLACK = 0.002, 0.001, 0.0005

Outcomes = dict[str, "CopyOutcome"]


def race_sync(traffic: Traffic, seed: int) -> Outcomes:
    """One trained model, and copies of it that take over the more often the more shards there are."""
    measured = traffic.seconds * (1 - WARM_UP)
    rules = {f"every {name}": SyncRule(rows_seconds=measured / shards) for name, shards in SHARDS.items()}
    outcome = validate(
        traffic.ranker,
        traffic.batches,
        copies={"batch": SyncRule(rows_seconds=math.inf), **rules},
        warm_up_seconds=traffic.seconds * WARM_UP,
        window_seconds=math.ceil(measured / 10),
        seed=seed,
    )
    return dict(outcome)


def race_rows(traffic: Traffic, seed: int) -> Outcomes:
    """All ids with a row; those that return, until they have left; and hashed ids in the memory of the latter."""
    day = traffic.seconds / 7
    options = {
        "copies": {"served": SyncRule(rows_seconds=day / 288)},
        "warm_up_seconds": day,
        "window_seconds": math.ceil(day),
        "seed": seed,
    }
    first = traffic.ranker.ids[0]
    days = max(1, round(3 * day / DAY))
    lean = replace(traffic.ranker, min_counts={first: 1}, expire_days=dict.fromkeys(traffic.ranker.ids, days))
    every = validate(traffic.ranker, traffic.batches, **options)
    some = validate(lean, traffic.batches, evict_every_seconds=day, **options)
    arrays = traffic.hashed(some.memory_bytes // lean.bytes_per_bare_row)
    hashed = validate(arrays.ranker, arrays.batches, **options)
    print(f"seed {seed}: {every.rows:,} rows of {every.memory_bytes / 1e6:.1f} MB; with admission and expiry"
          f" {some.rows:,} of {some.memory_bytes / 1e6:.1f} MB, as much as the hashed ids have")  # fmt: skip
    return {
        "hashed": hashed["served"],
        "own rows": every["served"],
        "admission, expiry": some["served"],
    }


def check_sync(outcomes: Mapping[str, CopyOutcome]) -> None:
    """The orderings of the paper: 5 h < 1 h <= 30 min, and each of them above batch."""
    batch, slow, middle, fast = (each.mean_auc for each in outcomes.values())
    assert batch + LEAST_GAIN < slow, f"expected all copies {LEAST_GAIN} above batch, {batch:.4f}; got {slow:.4f}"
    assert slow + LEAST_STEP < middle, f"expected fifty take-overs {LEAST_STEP} above ten: {slow:.4f}; got {middle:.4f}"
    assert middle < fast + SLACK, f"expected a hundred not below fifty, {middle:.4f}; got {fast:.4f}"


def check_rows(outcomes: Mapping[str, CopyOutcome]) -> None:
    """Rows of their own are ahead in every window, and leaving out ids that do not return costs nothing."""
    hashed, every, some = outcomes.values()
    for window, other in zip(some.windows, hashed.windows, strict=True):
        assert window.auc > other.auc, f"expected own rows ahead in every window, got {window.auc:.4f} in {window}"
    assert some.mean_auc > hashed.mean_auc + LEAST_GAIN, f"expected {LEAST_GAIN} more, got {some.mean_auc:.4f}"
    assert some.mean_auc > every.mean_auc - LEAST_GAIN, f"expected the lean table not behind, got {some.mean_auc:.4f}"


CONTESTS = {"sync": (race_sync, check_sync, DRIFTING), "rows": (race_rows, check_rows, PASSING_BY)}


def main() -> None:
    """Race for some seeds, show the table of each, and hold what is claimed of generated clicks."""
    parser = argparse.ArgumentParser(description="What freshness and rows of one's own are worth.")
    parser.add_argument("contest", choices=CONTESTS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--movielens", type=Path, metavar="FOLDER")
    parser.add_argument("--criteo", type=Path, metavar="FILE", nargs="+")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a page with plots, of the last seed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all numbers, a line for each seed")
    args = parser.parse_args()
    race, check, world = CONTESTS[args.contest]
    lines = []
    for seed in range(args.seeds):
        files = movielens(args.movielens) if args.movielens else criteo(args.criteo) if args.criteo else None
        traffic = clicks(world, seed=seed) if files is None else replace(files, ranker=replace(files.ranker, seed=seed))
        outcomes = race(traffic, seed)
        lines.append(json.dumps({"seed": seed, **{name: each.to_dict() for name, each in outcomes.items()}}))
        for name, each in outcomes.items():
            print(f"seed {seed}: {name:<18} AUC {each.mean_auc:.4f}  log loss {each.total.log_loss:.4f}")
        if files is None:
            check(outcomes)
        if args.out:
            write_page(args.out, outcomes, title=f"{args.contest}, seed {seed}")
    if args.json:
        args.json.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)  # the operations are small
    main()
