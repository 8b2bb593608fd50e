"""``monolith worker``: runs one worker of a job, for schedulers that start every process themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.cli._roles import add_flags, run_role_command

if TYPE_CHECKING:
    import argparse

__all__ = ["add_flags", "run"]


def run(args: argparse.Namespace) -> int:
    """Train until the job ends; 0 done, 130 stopped by a signal, 75 to be started again."""
    return run_role_command(args)
