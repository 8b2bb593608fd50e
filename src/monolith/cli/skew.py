"""``monolith skew``: replays logged requests, and counts scores that training code answers differently."""

from __future__ import annotations

import io
import json
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from monolith.cli._failures import FAILED
from monolith.cli._option_values import key_values
from monolith.cli._run_options import find_tasks_here, task_of
from monolith.observe import Progress
from monolith.serving.request_log import read_requests
from monolith.serving.skew import ReplayModels, measure_skew

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from monolith.serving.request_log import LoggedRequest
    from monolith.serving.skew import SkewReport


def run(args: argparse.Namespace) -> int:
    """Replays requests, prints the differences, and returns 1 if they exceed the limits."""
    _require_sense(args)
    find_tasks_here()
    models = ReplayModels(
        args.export, model_dir=args.model_dir, task=None if args.task is None else lambda: task_of(args)
    )
    with closing(models), Progress(unit="examples", file=io.StringIO() if args.json else None) as bar:
        report = measure_skew(_requests(args), models, tolerance=args.tolerance, keep=args.show, on_examples=bar.update)
    sys.stdout.write(f"{json.dumps(report.to_dict()) if args.json else report}\n")
    return _judge(report, args.fail_above)


def _requests(args: argparse.Namespace) -> Iterator[LoggedRequest]:
    left = args.examples
    settings = key_values(args.kafka, "--kafka")
    for request in read_requests(args.log, max_bad_records=args.max_bad_records, kafka=settings):
        if left is not None:
            if left <= 0:
                return
            left -= len(request.examples)
        yield request


def _judge(report: SkewReport, limit: float | None) -> int:
    if limit is None or (report.examples and report.skew <= limit):
        return 0
    verdict = f"{report.skew:.3%} of the scores differ, at most {limit:.3%} may"
    sys.stderr.write(f"monolith skew: {verdict if report.examples else 'nothing could be compared'}\n")
    return FAILED


def _require_sense(args: argparse.Namespace) -> None:
    if (args.task is None) != (args.model_dir is None):
        present, missing = ("--task", "--model_dir") if args.model_dir is None else ("--model_dir", "--task")
        raise ValueError(f"{present}: needs {missing}, too; without both, requests are replayed on the export")
    if args.params_override is not None and args.task is None:
        raise ValueError("--params_override: are parameters of a task; give --task")
    if args.fail_above is not None and not 0 <= args.fail_above < 1:
        raise ValueError(f"--fail_above: must be at least 0 and below 1, got {args.fail_above:g}")
    for name, lowest in (("show", 0), ("examples", 1), ("max_bad_records", 0)):
        value = getattr(args, name)
        if value is not None and value < lowest:
            raise ValueError(f"--{name}: must be at least {lowest}, got {value}")
