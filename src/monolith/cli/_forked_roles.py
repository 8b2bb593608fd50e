"""Roles of a job on this machine as forks of the command that starts them: what they need is imported once, here."""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING

import numpy as np
import torch

from monolith import environment
from monolith.cli import main, outcome_of
from monolith.launch.forked import Body, ForkedProcess
from monolith.train import find_task

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

__all__ = ["look_for_task", "role_body"]

_ERRORS = 2
"""The descriptor of standard error."""
_THREADS = "OMP_NUM_THREADS"
_OF_ROLES = ("monolith.cli.ps", "monolith.cli.worker", "grpc", "torch._dynamo")
"""What roles import when they need it. The last is imported by torch for the first optimizer, compiled or not."""


def role_body() -> Body:
    """Returns the main function of a role in a fork; imports modules that roles need."""
    for name in _OF_ROLES:
        with contextlib.suppress(ImportError):  # a role that needs it raises by itself
            importlib.import_module(name)
    threads = torch.get_num_threads()

    def body(arguments: Sequence[str]) -> int:
        given = (environment.get(_THREADS) or "").partition(",")[0]
        torch.set_num_threads(int(given) if given.isdecimal() else threads)  # the thread pool has not started yet
        np.random.seed()  # noqa: NPY002 - used by users' code; forks would all draw the same
        return main(arguments)

    return body


def look_for_task(args: argparse.Namespace) -> int:
    """Imports a task in a fork, to keep side effects out of this process; returns the exit code."""
    look = ForkedProcess(
        lambda _: outcome_of(args, lambda: 0 if find_task(args.task) else 1),
        [args.command, args.task],
        output=_ERRORS,
        kept=_ERRORS,
        variables={},
    )
    return look.wait()
