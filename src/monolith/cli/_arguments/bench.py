"""The arguments of ``monolith bench``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from monolith.cli._bench.catalog import ROWS

if TYPE_CHECKING:
    import argparse


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    """Declares the arguments of ``monolith bench``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "bench",
        description="Measures the tables and their peers alternately in one run, and prints ratios and what they mean. "
        "Takes a quarter of an hour and up to 10 GiB of memory; --quick takes a minute or two.",
        epilog="example: monolith bench --quick --rows training one_id",
    )
    add_arguments(parser)
    return parser


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that `setting_of` and `rows_of` of the command read."""
    keys = [row.key for row in ROWS]
    parser.add_argument("--rows", nargs="+", choices=keys, metavar="ROW", help=f"only these: {', '.join(keys)}")
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
