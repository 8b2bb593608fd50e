"""The arguments of ``monolith doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    """Declares the arguments of ``monolith doctor``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "doctor",
        description="Shows what monolith finds on this machine. Read-only; include it in a bug report.",
        epilog="example: monolith doctor --json",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    return parser
