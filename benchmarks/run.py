"""Runs the benchmark table: ours and the peers in one run, ratios beside what must be reached.

    python benchmarks/run.py                            # everything, about 20 minutes on two cores
    python benchmarks/run.py --rows training lookup     # some rows
    python benchmarks/run.py --quick                    # small tables: does everything run?
    python benchmarks/run.py --record benchmarks/RESULTS.md

The measuring code is the package's own (`monolith bench --check` prints the same table); this script adds what a
developer of monolith needs: recording a run in RESULTS.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from monolith.cli import bench
from monolith.cli._arguments.bench import add_arguments
from monolith.cli._bench import progress, report, runner

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, record; the exit status is 0 when everything ran and, with --check, met its requirement."""
    args = _parse(arguments)
    setting = bench.setting_of(args)
    outcome = runner.run(bench.rows_of(args), setting, tell=progress.tell)
    print(bench.render(outcome, setting, as_json=args.json, quick=args.quick, check=True), end="")
    if args.record is not None and outcome.measurements:
        record(args.record, report.as_markdown(outcome.measurements, bench.describe(setting)))
    return bench.exit_status(outcome, check=args.check)


def record(results: Path, table: str) -> None:
    """Puts a table between the two marks of a Markdown file, in place of the one that is there."""
    text = results.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"{results}: expected a line '{BEGIN}' and then a line '{END}'; put them around the table")
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    results.write_text(f"{head}{BEGIN}\n{table}{END}{tail}", encoding="utf-8")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measures monolith's tables and their peers.", epilog="example: python benchmarks/run.py --quick"
    )
    add_arguments(parser)
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the table into this RESULTS.md")
    args = parser.parse_args(arguments)
    if args.quick and args.record is not None:
        parser.error("--record is for full runs: the requirements speak of full-sized tables; leave out --quick")
    return args


if __name__ == "__main__":
    sys.exit(main())
