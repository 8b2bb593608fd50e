"""The arguments of ``monolith bench``."""

from __future__ import annotations

import argparse
from pathlib import Path

from monolith.cli._bench.catalog import CHECKOUT_ROWS, ROWS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``monolith bench``."""
    parser.description = (
        "Measures the tables and their peers alternately in one run, and prints ratios and what they mean. "
        "Takes several minutes and up to 10 GiB of memory; --quick takes about a minute. A checkout of the project "
        "measures more rows: python benchmarks/run.py --help."
    )
    parser.epilog = "example: monolith bench --quick --rows training one_id"
    keys = [row.key for row in ROWS]
    parser.add_argument(
        "--rows", nargs="+", type=_row, choices=keys, metavar="ROW", help=f"only these: {', '.join(keys)}"
    )
    add_common_arguments(parser)


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that ``benchmarks/run.py`` has, too."""
    parser.add_argument("--quick", action="store_true", help="small tables and short turns: a smoke test")
    parser.add_argument(
        "--check", action="store_true", help="print what must be reached, too, and exit with 1 where it is not"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--threads",
        type=int,
        nargs="+",
        metavar="N",
        help="threads of ours and of every peer (default: 2, or 1 on one core); of several numbers, such as 1 2 4 8, "
        "the rows `steps` and `threads` compare all and the other rows take the last",
    )
    parser.add_argument("--directory", type=Path, help="folder on the disk to save to (default: the temporary folder)")


def _row(key: str) -> str:
    if key in CHECKOUT_ROWS:
        raise argparse.ArgumentTypeError(
            f"the row '{key}' is not part of the installed package; in a checkout of the project, run "
            f"python benchmarks/run.py --suite tables --rows {key}"
        )
    return key
