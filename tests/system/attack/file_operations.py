"""A process killed right before each file operation of a save or a compaction.

The operations are open, rename, remove and create.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from monolith.deltalog import DeltaLog
from monolith.deltalog.follow.base_state import stores_of_log
from monolith.online import DeltaPublisher, Follower
from monolith.tables import LocalStore, Segment, TableConfig, TableGroup
from monolith.train import SavingConfig, StopAtStep
from system.attack.attempt import Attempt
from system.attack.counted_run import SAVINGS, end_of, found_wrong_anew, make_task, train
from system.crash.online_follower import rows_of
from system.crash.processes import Child

_BASE_STEP = 9
_END_STEP = 15
_DATA = 5
_INCREMENTS = 8
_CHANGES = frozenset({"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"})
_FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class _Work(NamedTuple):
    """The work of a killed process."""

    what: str
    begin: Path
    """A folder in the state before the work."""
    run: Callable[[Path], dict[str, Any]]
    wrong: Callable[[Path], str | None]
    """Returns the violated invariant of a folder whose process was killed, or None."""


def attempts(seed: int, folder: Path) -> Iterator[Attempt]:
    """Kills at every operation once, in random order, for background saves, saves between steps and a compaction."""
    works = [*_saves(folder / "base"), _compaction(folder / "log")]
    moments = [
        (operation, work) for work in works for operation in range(_number_of_operations(work, folder / "counted"))
    ]
    random.Random(f"{seed} operations").shuffle(moments)  # noqa: S311 - an order to repeat, not a secret
    for operation, work in moments:
        killed = folder / "killed"
        shutil.copytree(work.begin, killed)
        yield _attempt(operation, work, killed)
        shutil.rmtree(killed)


def _saves(base: Path) -> list[_Work]:
    _told(lambda: _train_to(_BASE_STEP, base, SAVINGS[0]))
    return [
        _Work(
            f"saves {'beside' if saving.background else 'between'} steps",
            base,
            partial(_train_to, _END_STEP, saving=saving),
            lambda model_dir, saving=saving: found_wrong_anew(model_dir, _DATA, saving),  # type: ignore[misc]
        )
        for saving in SAVINGS[:2]
    ]


def _attempt(operation: int, work: _Work, folder: Path) -> Attempt:
    what = f"killed before operation {operation} of {work.what}"
    child = Child(lambda _: _killed_at(operation, work, folder))
    try:
        told = end_of(child)
    except RuntimeError as error:
        return Attempt(what, "failed", str(error))
    finally:
        child.close()
    # A save in the background may make fewer operations than the counted one.
    return Attempt(what, f"{work.what}: {'had ended before' if 'result' in told else 'killed'}", work.wrong(folder))


def _number_of_operations(work: _Work, folder: Path) -> int:
    shutil.copytree(work.begin, folder)
    number: int = _told(lambda: _counted(work, folder))["operations"]
    shutil.rmtree(folder)
    return number


def _counted(work: _Work, folder: Path) -> dict[str, Any]:
    number = 0

    def count() -> None:
        nonlocal number
        number += 1

    _on_change(folder, count)
    work.run(folder)
    return {"operations": number}


def _killed_at(operation: int, work: _Work, folder: Path) -> dict[str, Any]:
    left = operation

    def kill() -> None:
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), 9)
        left -= 1

    _on_change(folder, kill)
    return work.run(folder)


# A follower that compacts its log


def _compaction(place: Path) -> _Work:
    expected = _told(lambda: _published(place))

    def wrong(folder: Path) -> str | None:
        for when in ("after the kill", "after another compaction"):
            found = _told(lambda: _followed(folder))
            if found != expected:
                return f"{when} a follower has {found}, expected {expected}"
            _told(lambda: _compacted(folder))
        return None

    return _Work("a compaction", place, _compacted, wrong)


def _published(place: Path) -> dict[str, Any]:
    store = LocalStore({"item": TableConfig([Segment(1)])})
    with DeltaPublisher(store, DeltaLog(place, segment_bytes=700)) as publisher:
        for number in range(_INCREMENTS):
            TableGroup.of_store(store)["item"].assign(range(number, number + 5), [[float(number)]] * 5)
            publisher.publish()
    return _followed(place)


def _followed(place: Path) -> dict[str, Any]:
    with DeltaLog(place) as log:
        stores = stores_of_log(log)
        with Follower(stores, log) as follower:
            follower.catch_up()
            return {"rows": {name: rows_of(store) for name, store in stores.items()}, "version": follower.version}


def _compacted(place: Path) -> dict[str, Any]:
    with DeltaLog(place) as log, Follower(stores_of_log(log), log) as follower:
        follower.catch_up()
        follower.save_base(f"compacted-{os.getpid()}")
    return {}


def _on_change(model_dir: Path, call: Callable[[], None]) -> None:
    """Calls `call` before each change to files of the directory, until the process ends: audit hooks cannot be removed.

    Writes of the core itself happen between two of these calls.
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
