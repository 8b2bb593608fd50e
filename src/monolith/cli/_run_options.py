"""The options of a run as a command was given them, and how they are printed."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monolith.train import Task, find_task
from monolith.train.compat import Origin, RunnerConfig, override_params
from monolith.train.parameters import flags

if TYPE_CHECKING:
    import argparse


def options_of(args: argparse.Namespace, **said: Any) -> RunnerConfig:
    """Returns the options of a run, by priority: the command's own, flags, variables, the file, defaults."""
    options = flags.take_flags(RunnerConfig(), args)
    return options.update({"task": args.task, **said}, Origin.CODE)


def config_text(options: RunnerConfig, *, as_json: bool) -> str:
    """Returns every option, its value and where it came from."""
    described = [(name, value, str(origin)) for name, value, origin in options.describe()]
    if as_json:
        rows = {name: {"value": _printable(value), "origin": origin} for name, value, origin in described}
        return f"{json.dumps(rows, indent=2)}\n"
    width = max(len(name) for name, _, _ in described)
    return "".join(f"{name:<{width}}  {_printable(value)!r}  ({origin})\n" for name, value, origin in described)


def find_tasks_here() -> None:
    """Makes tasks in the working directory importable, too, as ``python -m`` does."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def task_of(args: argparse.Namespace) -> Task:
    """Returns the task of a command, with its parameters overridden."""
    params = find_task(args.task)
    override_params(params, args.params_override)
    task = params.instantiate()
    assert isinstance(task, Task)  # noqa: S101 - find_task finds nothing else
    return task


def command_of(args: argparse.Namespace) -> str:
    """Returns the command line, which also resumes the run."""
    return shlex.join(["monolith", *getattr(args, "arguments", sys.argv[1:])])


def tell(text: str) -> None:
    """Prints a line for the user of the command."""
    sys.stderr.write(f"{text}\n")


def saved_text(step: int, rows: int | None, model_dir: object, *, expired: int = 0) -> str:
    """Returns the last line of a run that was saved."""
    removed = f"; {expired:,} expired rows were removed" if expired else ""
    return f"step {step:,}{'' if rows is None else f' with {rows:,} rows'} is saved in {model_dir}{removed}"


def _printable(value: Any) -> Any:
    return (
        value
        if isinstance(value, bool | int | float | str | dict | None)
        else getattr(value, "name", str(value)).lower()
    )
