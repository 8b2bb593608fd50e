"""``monolith bench``: how fast the tables are on this machine, beside what else could be used."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monolith.cli._bench import machine, peers, progress, report, runner
from monolith.cli._bench.catalog import ROWS
from monolith.cli._bench.setting import Setting

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from monolith.cli._bench.catalog import Row
    from monolith.cli._bench.runner import Outcome

_INTERRUPTED = 130


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    """Describe the arguments of ``monolith bench``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "bench",
        description="Measures the tables and their peers in turns, in one run, and prints ratios beside what "
        "must be reached. Takes a quarter of an hour and up to 10 GiB of memory; --quick takes a minute or two.",
        epilog="example: monolith bench --quick --rows training one_id",
    )
    add_arguments(parser)
    return parser


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that `settings_of` and `rows_of` read."""
    keys = [row.key for row in ROWS]
    parser.add_argument("--rows", nargs="+", choices=keys, metavar="ROW", help=f"only these: {', '.join(keys)}")
    parser.add_argument("--quick", action="store_true", help="small tables and short turns: a smoke test")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--threads", type=int, help="threads of ours and of every peer (default: 2, or 1 on one core)")
    parser.add_argument("--directory", type=Path, help="folder on the disk to save to (default: the temporary folder)")


def run(args: argparse.Namespace) -> int:
    """Measure and print; 0 when every row ran, whatever the ratios, 1 when one failed, 130 after Ctrl-C."""
    setting = setting_of(args)
    outcome = runner.run(rows_of(args), setting, tell=progress.tell)
    sys.stdout.write(render(outcome, setting, as_json=args.json, quick=args.quick))
    return exit_status(outcome)


def setting_of(args: argparse.Namespace) -> Setting:
    """Sizes, threads and disk of the run."""
    threads = args.threads if args.threads is not None else min(2, os.cpu_count() or 1)
    setting = Setting(threads=threads)
    if args.directory is not None:
        if not args.directory.is_dir():
            raise ValueError(f"--directory: expected an existing folder, got {args.directory}; make it first")
        setting = Setting(threads=threads, directory=str(args.directory.resolve()))
    return setting.quick() if args.quick else setting


def rows_of(args: argparse.Namespace) -> Sequence[Row]:
    """The rows asked for, in the order of the table."""
    return [row for row in ROWS if args.rows is None or row.key in args.rows]


def render(outcome: Outcome, setting: Setting, *, as_json: bool, quick: bool) -> str:
    """What was measured, as JSON or as text."""
    described = describe(setting)
    if as_json:
        return report.as_json(outcome.measurements, described, setting)
    if quick:
        described["size"] = "quick: smaller tables than the requirements speak of, so read the verdicts as a smoke test"
    return report.as_text(outcome.measurements, described)


def describe(setting: Setting) -> dict[str, str]:
    """The head of a report: machine, versions, peers and threads."""
    return machine.describe() | {"peers": peers.describe(), "threads": str(setting.threads)}


def exit_status(outcome: Outcome) -> int:
    """0 when every row ran."""
    if outcome.interrupted:
        return _INTERRUPTED
    return 1 if outcome.failed else 0
