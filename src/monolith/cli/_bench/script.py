"""What scripts of `benchmarks/` that measure rows of the catalog have in common: their options, and what they print."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import TYPE_CHECKING

from monolith.cli._bench import machine, progress, report, runner
from monolith.cli._bench.setting import Setting
from monolith.cli.bench import exit_status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.cli._bench.catalog import Row


def measure_and_print(
    rows: Sequence[Row], *, description: str | None, rounds: int, arguments: Sequence[str] | None
) -> int:
    """Returns 0 when every row ran, 1 when one failed or, with --check, missed, 130 after Ctrl-C.

    Args:
        rows: Rows that the script can measure.
        description: Description of the script, for its help.
        rounds: Default number of turns of each contestant.
        arguments: Arguments of the command line; None: this process's own.
    """
    args = _parse(rows, description, rounds, arguments)
    setting = Setting().quick() if args.quick else Setting(rounds=rounds)
    chosen = {name: value for name in ("rounds", "seconds") if (value := getattr(args, name)) is not None}
    setting = dataclasses.replace(setting, **chosen)
    outcome = runner.run(
        [row for row in rows if args.rows is None or row.key in args.rows], setting, tell=progress.tell
    )
    described = machine.describe()
    if args.json:
        sys.stdout.write(report.as_json(outcome.measurements, described, setting))
    else:
        text = report.as_markdown if args.markdown else report.as_text
        sys.stdout.write(text(outcome.measurements, described))
    return exit_status(outcome, check=args.check)


def _parse(
    rows: Sequence[Row], description: str | None, rounds: int, arguments: Sequence[str] | None
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    keys = [row.key for row in rows]
    parser.add_argument("--rows", nargs="+", choices=keys, metavar="ROW", help=f"only these: {', '.join(keys)}")
    parser.add_argument("--rounds", type=int, help=f"turns that each contestant gets (default: {rounds})")
    parser.add_argument("--seconds", type=float, help="of a turn (default: 1)")
    parser.add_argument("--quick", action="store_true", help="small tables and short turns: a smoke test")
    parser.add_argument("--check", action="store_true", help="return 1 when a requirement is missed")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print JSON instead of a table")
    output.add_argument("--markdown", action="store_true", help="print the table as RESULTS.md has it")
    return parser.parse_args(arguments)
