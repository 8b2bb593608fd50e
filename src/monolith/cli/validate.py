"""``monolith validate``: measures a task's quality in serving, by how often its replicas load updates."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING

from monolith.cli._arguments.validate import written
from monolith.cli._option_values import require_writable
from monolith.cli._run_options import find_tasks_here, task_of
from monolith.observe import Progress
from monolith.validation import SyncRule, validate, write_page

if TYPE_CHECKING:
    import argparse


def run(args: argparse.Namespace) -> int:
    """Validates, prints a table, and writes the page."""
    if args.out is not None:
        require_writable(args.out)
    find_tasks_here()
    rules = {written(time): SyncRule(rows_seconds=time, dense_seconds=args.dense) for time in args.take_over}
    with Progress(unit="examples", file=io.StringIO() if args.json else None) as bar:
        outcome = validate(
            lambda: task_of(args),
            copies=rules,
            window_seconds=round(args.window),
            warm_up_seconds=args.warm_up,
            evict_every_seconds=args.evict,
            disorder_seconds=args.disorder,
            max_examples=args.examples,
            head=args.head,
            seed=args.seed,
            on_batch=bar.update,
        )
    if args.out is not None:
        write_page(args.out, outcome, title=f"{args.task}: what freshness is worth")
    sys.stdout.write(f"{json.dumps(outcome.to_dict()) if args.json else outcome}\n")
    return 0
