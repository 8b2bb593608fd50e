"""The arguments of ``monolith demo``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

EXAMPLES, SECONDS = 1_200_000, 40.0
"""What ends a demo of which nothing was said, whichever comes first."""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    """Describe the arguments of ``monolith demo``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "demo",
        description="Generates clicks that drift, trains online in time order (predict, then learn), and compares with"
        " a frozen model and with hashed ids of the same memory. Takes less than a minute, and writes a report with"
        " plots.",
        epilog="example: monolith demo --seconds 20 --out report.html",
    )
    parser.add_argument("--examples", type=int, help=f"stop after so many (default: {EXAMPLES:,}, if no --seconds)")
    parser.add_argument("--seconds", type=float, help=f"stop after so long (default: {SECONDS:g}, if no --examples)")
    parser.add_argument("--seed", type=int, default=0, help="of the traffic and of all first weights (default: 0)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("monolith-demo.html"),
        metavar="FILE",
        help="where to write the report (default: monolith-demo.html)",
    )
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON and show no progress")
    return parser
