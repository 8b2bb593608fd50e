"""Measures the rows of one suite: ours and the peers in one run, alternating; prints ratios and what must be reached.

    python benchmarks/run.py                                    # the suite `tables`, about 20 minutes on two cores
    python benchmarks/run.py --suite ps                         # another suite
    python benchmarks/run.py --suite ps --rows ps_cpu ps_wall   # some rows
    python benchmarks/run.py --suite ps --quick                 # small tables: does everything run?
    python benchmarks/run.py --suite ps --markdown              # as RESULTS.md has it
    python benchmarks/run.py --record benchmarks/RESULTS.md

README.md describes what each row measures and which packages the peers need.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    # The folder of the package `benchmarks`, in place of the folder of this file.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.suites.catalog import SUITES
from monolith.cli import bench
from monolith.cli._arguments.bench import add_common_arguments
from monolith.cli._bench import report, runner
from monolith.cli._bench.measurement import tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monolith.cli._bench.setting import Setting

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; 0 when every row ran, 1 when one failed or, with --check, missed, 130 after Ctrl-C."""
    args = _parse(arguments)
    setting = setting_of(args)
    rows = [row for row in SUITES[args.suite].rows if args.rows is None or row.key in args.rows]
    outcome = runner.run(rows, setting, tell=tell)
    if args.markdown:
        sys.stdout.write(report.as_markdown(outcome.measurements, bench.describe_run(outcome, setting)))
    else:
        sys.stdout.write(bench.render(outcome, setting, as_json=args.json, quick=args.quick, check=True))
    if args.record is not None and outcome.measurements:
        record(args.record, report.as_markdown(outcome.measurements, bench.describe(setting)))
    return bench.exit_status(outcome, check=args.check)


def setting_of(args: argparse.Namespace) -> Setting:
    """Returns the setting of the suite, with what the options change."""
    setting = bench.setting_of(args)
    if not args.quick:
        setting = dataclasses.replace(setting, **SUITES[args.suite].setting)
    chosen = {name: value for name in ("rounds", "seconds") if (value := getattr(args, name)) is not None}
    return dataclasses.replace(setting, **chosen)


def record(results: Path, table: str) -> None:
    """Puts a table between the two marks of a Markdown file, in place of the old one."""
    text = results.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"{results}: expected a line '{BEGIN}' and then a line '{END}'; put them around the table")
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    results.write_text(f"{head}{BEGIN}\n{table}{END}{tail}", encoding="utf-8")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=_suites(), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suite", choices=SUITES, default="tables", help="the rows to measure (default: tables)")
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="only these rows of the suite")
    parser.add_argument("--rounds", type=int, help="turns that each contestant gets")
    parser.add_argument("--seconds", type=float, help="length of a turn")
    add_common_arguments(parser)
    parser.add_argument("--markdown", action="store_true", help="print the table as RESULTS.md has it")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the table into this RESULTS.md")
    args = parser.parse_args(arguments)
    keys = [row.key for row in SUITES[args.suite].rows]
    if unknown := [key for key in args.rows or () if key not in keys]:
        parser.error(f"--rows: the suite '{args.suite}' has {', '.join(keys)}, got {', '.join(unknown)}")
    if args.json and args.markdown:
        parser.error("--json and --markdown: give one of them")
    if args.record is not None and (args.quick or args.suite != "tables"):
        parser.error("--record is for full runs of the suite 'tables'; do not give --quick or --suite")
    return args


def _suites() -> str:
    lines = ["suites:"]
    for name, suite in SUITES.items():
        lines += [f"  {name}: {suite.title}", f"    {', '.join(row.key for row in suite.rows)}"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
