"""The arguments of ``monolith doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``monolith doctor``."""
    parser.description = "Shows what monolith finds on this machine. Read-only; include it in a bug report."
    parser.epilog = "example: monolith doctor --json"
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
