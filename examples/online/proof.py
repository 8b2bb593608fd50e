"""Measure the value of fresh serving copies, and of one row per id, by progressive validation on a stream of clicks.

    python examples/online/proof.py sync                          # E3 of the paper: intervals of sync
    python examples/online/proof.py rows                          # E1: one row per id against hashed ids
    python examples/online/proof.py sync --seeds 5 --out sync.html
    python examples/online/proof.py rows --movielens ml-100k      # or --criteo train.txt: your own files

Each example is predicted before the step on it. README.md in this folder has the expected results.
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


def run_sync(traffic: Traffic, seed: int) -> Outcomes:
    """Train one model with serving copies that sync at different intervals."""
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


def run_rows(traffic: Traffic, seed: int) -> Outcomes:
    """Train with one row per id, with admission and expiry of rows, and with hashed ids in the memory of the second."""
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
    complete = validate(traffic.ranker, traffic.batches, **options)
    admitted = validate(lean, traffic.batches, evict_every_seconds=day, **options)
    arrays = traffic.hashed(admitted.memory_bytes // lean.bytes_per_bare_row)
    hashed = validate(arrays.ranker, arrays.batches, **options)
    print(f"seed {seed}: {complete.rows:,} rows of {complete.memory_bytes / 1e6:.1f} MB; with admission and expiry"
          f" {admitted.rows:,} of {admitted.memory_bytes / 1e6:.1f} MB, the memory of the hashed ids")  # fmt: skip
    return {
        "hashed": hashed["served"],
        "own rows": complete["served"],
        "admission, expiry": admitted["served"],
    }


def check_sync(outcomes: Mapping[str, CopyOutcome]) -> None:
    """Check the order that the paper reports: batch < 5 h < 1 h <= 30 min."""
    batch, slow, middle, fast = (outcome.mean_auc for outcome in outcomes.values())
    assert batch + LEAST_GAIN < slow, f"expected all copies {LEAST_GAIN} above batch, {batch:.4f}; got {slow:.4f}"
    assert slow + LEAST_STEP < middle, f"expected fifty syncs {LEAST_STEP} above ten, {slow:.4f}; got {middle:.4f}"
    assert middle < fast + SLACK, f"expected a hundred syncs not below fifty, {middle:.4f}; got {fast:.4f}"


def check_rows(outcomes: Mapping[str, CopyOutcome]) -> None:
    """Check that one row per id is better in every window, and that admission and expiry cost no AUC."""
    hashed, complete, admitted = outcomes.values()
    for window, other in zip(admitted.windows, hashed.windows, strict=True):
        assert window.auc > other.auc, f"expected own rows ahead in every window, got {window.auc:.4f} in {window}"
    auc, least = admitted.mean_auc, complete.mean_auc - LEAST_GAIN
    assert auc > hashed.mean_auc + LEAST_GAIN, f"expected {LEAST_GAIN} above hashed ids, got {auc:.4f}"
    assert auc > least, f"expected admission and expiry to cost at most {LEAST_GAIN}, got {auc:.4f}"


EXPERIMENTS = {"sync": (run_sync, check_sync, DRIFTING), "rows": (run_rows, check_rows, PASSING_BY)}


def main() -> None:
    """Run an experiment for each seed, print its results, and check their order on generated clicks."""
    parser = argparse.ArgumentParser(description="The value of fresh serving copies, and of one row per id.")
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--movielens", type=Path, metavar="FOLDER")
    parser.add_argument("--criteo", type=Path, metavar="FILE", nargs="+")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write a page with plots of the last seed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results, one line per seed")
    args = parser.parse_args()
    run, check, world = EXPERIMENTS[args.experiment]
    lines = []
    for seed in range(args.seeds):
        files = movielens(args.movielens) if args.movielens else criteo(args.criteo) if args.criteo else None
        traffic = clicks(world, seed=seed) if files is None else replace(files, ranker=replace(files.ranker, seed=seed))
        outcomes = run(traffic, seed)
        lines.append(json.dumps({"seed": seed, **{name: outcome.to_dict() for name, outcome in outcomes.items()}}))
        for name, outcome in outcomes.items():
            print(f"seed {seed}: {name:<18} AUC {outcome.mean_auc:.4f}  log loss {outcome.total.log_loss:.4f}")
        if files is None:
            check(outcomes)
        if args.out:
            write_page(args.out, outcomes, title=f"{args.experiment}, seed {seed}")
    if args.json:
        args.json.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)  # the operations are small
    main()
