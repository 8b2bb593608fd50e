"""The arguments of ``monolith demo``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

EXAMPLES = 1_200_000
"""Default number of examples of a demo: thirty days of traffic."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``monolith demo``."""
    parser.description = (
        "Generates clicks that drift, trains online in time order (predict, then learn), and compares with"
        " a frozen model and with hashed ids of the same memory. Writes a report with plots. A run that is stopped"
        " before its last example reports that and compares nothing."
    )
    parser.epilog = "example: monolith demo --examples 400000 --out report.html"
    parser.add_argument("--examples", type=int, default=EXAMPLES, help=f"how many there are (default: {EXAMPLES:,})")
    parser.add_argument("--seconds", type=float, help="stop after so long, with or without a result (default: never)")
    parser.add_argument("--seed", type=int, default=0, help="of the traffic and of all first weights (default: 0)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("monolith-demo.html"),
        metavar="FILE",
        help="where to write the report (default: monolith-demo.html)",
    )
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON and show no progress")
