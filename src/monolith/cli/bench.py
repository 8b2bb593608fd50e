"""``monolith bench``: measures the speed of tables on this machine, compared to alternatives."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import TYPE_CHECKING

from monolith import _core
from monolith.cli._bench import machine, peers, report, runner
from monolith.cli._bench.catalog import ROWS
from monolith.cli._bench.measurement import tell
from monolith.cli._bench.setting import Setting
from monolith.cli._failures import INTERRUPTED

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from monolith.cli._bench.catalog import BenchRow
    from monolith.cli._bench.runner import BenchOutcome

_QUICK = "quick: small tables, which fit the caches of a machine better than real ones; a first look, not a result"
_QUICK_CHECK = "quick: smaller tables than the requirements speak of, so read the verdicts as a smoke test"


def run(args: argparse.Namespace) -> int:
    """Measure and print; 0 when every row ran, 1 when one failed or, with --check, missed, 130 after Ctrl-C."""
    setting = setting_of(args)
    outcome = runner.run(rows_of(args), setting, tell=tell)
    sys.stdout.write(render(outcome, setting, as_json=args.json, quick=args.quick, check=args.check))
    return exit_status(outcome, check=args.check)


def setting_of(args: argparse.Namespace) -> Setting:
    """Sizes, threads and disk of the run."""
    counts = args.threads if args.threads is not None else [min(2, os.cpu_count() or 1)]
    setting = Setting(threads=counts[-1], thread_counts=tuple(counts) if len(counts) > 1 else ())
    if args.directory is not None:
        if not args.directory.is_dir():
            raise ValueError(f"--directory: expected an existing folder, got {args.directory}; make it first")
        setting = dataclasses.replace(setting, directory=str(args.directory.resolve()))
    return setting.quick() if args.quick else setting


def rows_of(args: argparse.Namespace) -> Sequence[BenchRow]:
    """Returns the requested rows, in the order of the table."""
    return [row for row in ROWS if args.rows is None or row.key in args.rows]


def render(outcome: BenchOutcome, setting: Setting, *, as_json: bool, quick: bool, check: bool) -> str:
    """Returns what was measured, as JSON or as text: in words, or with a verdict on each line."""
    described = describe_run(outcome, setting)
    if as_json:
        return report.as_json(outcome.measurements, described, setting)
    if quick:
        described["size"] = _QUICK_CHECK if check else _QUICK
    text = report.as_text if check else report.as_ratios
    return text(outcome.measurements, described)


def describe_run(outcome: BenchOutcome, setting: Setting) -> dict[str, str]:
    """Returns the head of a report on a run that was made, with a warning where others had much of the processors."""
    described = describe(setting)
    if outcome.busy:
        described["warning"] = f"others used up to {outcome.busy:.0%} of the processors: figures and ratios are too low"
    return described


def describe(setting: Setting) -> dict[str, str]:
    """Returns the head of a report: machine, versions, peers and threads."""
    return machine.describe() | {
        "peers": peers.describe(),
        "threads": _threads(setting),
        "instruction set": _core.instruction_set(),
    }


def _threads(setting: Setting) -> str:
    return " ".join(map(str, setting.thread_counts or (setting.threads,)))


def exit_status(outcome: BenchOutcome, *, check: bool) -> int:
    """0 when every row ran and, where it is checked, reached what it must."""
    if outcome.interrupted:
        return INTERRUPTED
    missed = check and any(measurement.ok is False for measurement in outcome.measurements)
    return 1 if outcome.failed or missed else 0
