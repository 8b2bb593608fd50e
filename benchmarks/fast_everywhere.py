"""Measures what every architecture is held to, each line beside its limit: one command for one table of RESULTS.md.

    python benchmarks/fast_everywhere.py                            # two threads, about ten minutes on quiet cores
    python benchmarks/fast_everywhere.py --threads 1 8 16           # on a machine of 16 cores
    python benchmarks/fast_everywhere.py --rows steps embeddings    # some rows
    python benchmarks/fast_everywhere.py --quick                    # small tables: does everything run?
    python benchmarks/fast_everywhere.py --markdown                 # as RESULTS.md has it

The rows are those of `monolith bench`, in an order in which the quickest to tell come first; README.md says what each
measures and which packages the peers need. The largest table has 10M rows, so that 6 GiB of memory will do.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import TYPE_CHECKING

from monolith.cli import bench
from monolith.cli._bench import progress, report, runner
from monolith.cli._bench.catalog import FAST_KEYS, ROWS
from monolith.cli._bench.setting import Setting

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 0 when every row ran, 1 when one failed or, with --check, missed, 130 after Ctrl-C."""
    args = _parse(arguments)
    setting = setting_of(args)
    by_key = {row.key: row for row in ROWS}
    outcome = runner.run([by_key[key] for key in FAST_KEYS if key in args.rows], setting, tell=progress.tell)
    if args.markdown:
        sys.stdout.write(report.as_markdown(outcome.measurements, bench.describe_run(outcome, setting)))
    else:
        sys.stdout.write(bench.render(outcome, setting, as_json=args.json, quick=args.quick, check=True))
    return bench.exit_status(outcome, check=args.check)


def setting_of(args: argparse.Namespace) -> Setting:
    """Tables of 1M and 10M rows, turns of half a second."""
    counts = tuple(args.threads)
    setting = Setting(threads=counts[-1], thread_counts=counts if len(counts) > 1 else ())
    if args.quick:
        return setting.quick()
    return dataclasses.replace(setting, huge_rows=setting.large_rows, seconds=0.5)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rows", nargs="+", choices=FAST_KEYS, default=FAST_KEYS, metavar="ROW", help=f"only: {', '.join(FAST_KEYS)}"
    )
    parser.add_argument(
        "--threads",
        type=int,
        nargs="+",
        default=[2],
        metavar="N",
        help="threads of ours and of every peer (default: 2); of several numbers, the rows `steps` and `threads` "
        "compare all and the other rows take the last",
    )
    parser.add_argument("--quick", action="store_true", help="small tables and short turns: a smoke test")
    parser.add_argument("--check", action="store_true", help="return 1 when a requirement is missed")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print JSON instead of a table")
    output.add_argument("--markdown", action="store_true", help="print the table as RESULTS.md has it")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
