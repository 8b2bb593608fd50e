"""A process killed right before each operation on files that a save makes: opening, renaming, removing, making."""

from __future__ import annotations

import os
import random
import shutil
import sys
from typing import TYPE_CHECKING, Any

from monolith.testing.attack.attempt import Attempt
from monolith.testing.attack.counted_run import SAVINGS, end_of, found_wrong_anew, make_task, train
from monolith.testing.crash.child import Child
from monolith.testing.crash.trial import newest
from monolith.train import StopAtStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from monolith.train import SavingConfig

__all__ = ["attempts"]

_BASE_STEP = 9
_END_STEP = 15
_DATA = 5
_CHANGES = frozenset({"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"})
_FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def attempts(seed: int, folder: Path) -> Iterator[Attempt]:
    """Every operation once, in random order, for saves beside and between steps; then no more."""
    base = folder / "base"
    _told(lambda: _train_to(_BASE_STEP, base, SAVINGS[0]))
    moments = []
    for saving in SAVINGS[:2]:
        number = _number_of_operations(base, folder / "counted", saving)
        moments += [(operation, saving) for operation in range(number)]
    random.Random(f"{seed} operations").shuffle(moments)  # noqa: S311 - an order to repeat, not a secret
    for operation, saving in moments:
        model_dir = folder / "killed"
        shutil.copytree(base, model_dir)
        yield _attempt(operation, model_dir, saving)
        shutil.rmtree(model_dir)


def _attempt(operation: int, model_dir: Path, saving: SavingConfig) -> Attempt:
    what = f"killed before operation {operation} of saves {'beside' if saving.background else 'between'} steps"
    child = Child(lambda _: _killed_at(operation, model_dir, saving))
    try:
        told = end_of(child)
    except RuntimeError as error:
        return Attempt(what, "failed", str(error))
    finally:
        child.close()
    if "result" in told:  # a save beside the steps may make fewer operations than the one that was counted
        return Attempt(what, "had ended before", found_wrong_anew(model_dir, _DATA, saving))
    return Attempt(what, f"left step {newest(model_dir)}", found_wrong_anew(model_dir, _DATA, saving))


def _number_of_operations(base: Path, model_dir: Path, saving: SavingConfig) -> int:
    shutil.copytree(base, model_dir)
    number: int = _told(lambda: _counted(model_dir, saving))["operations"]
    shutil.rmtree(model_dir)
    return number


def _counted(model_dir: Path, saving: SavingConfig) -> dict[str, Any]:
    number = 0

    def count() -> None:
        nonlocal number
        number += 1

    _on_change(model_dir, count)
    _train_to(_END_STEP, model_dir, saving)
    return {"operations": number}


def _killed_at(operation: int, model_dir: Path, saving: SavingConfig) -> dict[str, Any]:
    left = operation

    def kill() -> None:
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), 9)
        left -= 1

    _on_change(model_dir, kill)
    return _train_to(_END_STEP, model_dir, saving)


def _on_change(model_dir: Path, call: Callable[[], None]) -> None:
    """Calls before each change to files of the directory, until the process ends: audit hooks cannot be removed.

    What the core writes by itself lies between two of these moments.
    """
    root = str(model_dir)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        is_open = event == "open" and isinstance(args[2], int) and args[2] & _FOR_WRITING
        if (is_open or event in _CHANGES) and str(args[0]).startswith(root):
            call()

    sys.addaudithook(hook)


def _train_to(step: int, model_dir: Path, saving: SavingConfig) -> dict[str, Any]:
    return {"step": train(make_task(_DATA), model_dir, saving, [StopAtStep(max_steps=step)])}


def _told(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    child = Child(lambda _: work())
    try:
        result: dict[str, Any] = end_of(child)["result"]
    finally:
        child.close()
    return result
