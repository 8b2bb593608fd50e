"""The arguments of ``monolith worker``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith.cli._arguments._roles import add_role_parser
from monolith.cli._arguments.train import MEANT

if TYPE_CHECKING:
    import argparse

__all__ = ["MEANT", "add_parser"]


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    """Declares the arguments of ``monolith worker``."""
    return add_role_parser(
        subparsers,
        "worker",
        description="Runs one worker of a job, for schedulers that start every process themselves; worker 0 is the"
        " chief, which restores and saves. It waits for the others, trains until the job ends, and resumes after a"
        " restart. SIGTERM or SIGINT lets the job save and end; a second one ends this process. Exit codes: 0 done, 130"
        " stopped, 75 start it again, else an error.",
        example="--model_dir /shared/ranker --num_ps 2 --num_workers 2 --index 1 --discovery_type host"
        " --discovery_dir /shared/run-7",
    )
