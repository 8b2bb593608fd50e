"""Measures parameter servers beside a store in process and beside bare sockets: ratios of one run, in turns.

    python benchmarks/ps.py                             # everything, about ten minutes on two cores
    python benchmarks/ps.py --rows ps_cpu ps_wall       # some rows
    python benchmarks/ps.py --quick                     # small tables: does everything run?
    python benchmarks/ps.py --markdown                  # as RESULTS.md has it

4,096 x 26 ids, zipf 1.05, dim 16, Adagrad. Servers are processes of this machine, reached over loopback. Processor time
is that of whole processes, by the kernel's own clocks. The bare socket loop is `cli/_bench/socket_loop.cpp`, compiled
in the run: one thread at each end sends and receives as many bytes as the step beside it, and does nothing else.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import TYPE_CHECKING

from monolith.cli._bench import machine, progress, report, runner
from monolith.cli._bench.catalog import PS_ROWS
from monolith.cli._bench.setting import Setting
from monolith.cli.bench import exit_status

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 0 when every row ran, 1 when one failed or, with --check, missed, 130 after Ctrl-C."""
    args = _parse(arguments)
    setting = Setting().quick() if args.quick else Setting(rounds=9)
    chosen = {name: value for name in ("rounds", "seconds") if (value := getattr(args, name)) is not None}
    setting = dataclasses.replace(setting, **chosen)
    rows = [row for row in PS_ROWS if args.rows is None or row.key in args.rows]
    outcome = runner.run(rows, setting, tell=progress.tell)
    described = machine.describe()
    if args.json:
        print(report.as_json(outcome.measurements, described, setting), end="")
    else:
        text = report.as_markdown if args.markdown else report.as_text
        print(text(outcome.measurements, described), end="")
    return exit_status(outcome, check=args.check)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    keys = [row.key for row in PS_ROWS]
    parser.add_argument("--rows", nargs="+", choices=keys, metavar="ROW", help=f"only these: {', '.join(keys)}")
    parser.add_argument("--rounds", type=int, help="turns that each contestant gets (default: 9)")
    parser.add_argument("--seconds", type=float, help="of a turn (default: 1)")
    parser.add_argument("--quick", action="store_true", help="small tables and short turns: a smoke test")
    parser.add_argument("--check", action="store_true", help="return 1 when a requirement is missed")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print JSON instead of a table")
    output.add_argument("--markdown", action="store_true", help="print the table as RESULTS.md has it")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
