"""The process that is watched: saves and restores, with a failure at one operation after the other.

process.py LIBRARY record SCENARIO FOLDER COPY RECORD: copies the folder, then writes down one save
process.py LIBRARY save SCENARIO FOLDER KIND FIRST STRIDE: a save for each STRIDE-th operation; prints what did not hold
process.py LIBRARY restore FOLDER KIND: the same for every operation of a restore
"""

from __future__ import annotations

import errno
import itertools
import json
import logging
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from file_faults.operations import Operations
from file_faults.scenarios import FIRST_STEPS, SCENARIOS, Scenario
from file_faults.small_run import SmallRun, contents
from monolith.checkpoint import Saver
from monolith.errors import OpError

KINDS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "interrupt": 0}


def main(library: str, what: str, *arguments: str) -> None:
    """Does one thing; prints a line of JSON."""
    logging.disable(logging.CRITICAL)
    operations = Operations(library)
    if what == "record":
        scenario, folder, copy, record = arguments
        saving = Saving(SCENARIOS[scenario], Path(folder))
        Path(folder).mkdir(exist_ok=True)
        shutil.copytree(folder, copy)
        with operations.recorded(Path(folder), Path(record)):
            saving.save()
        saving.close()
        return
    if what == "save":
        scenario, folder, kind, first, stride = arguments
        numbers = itertools.count(int(first), int(stride))
        found = fail_saves(operations, SCENARIOS[scenario], Path(folder), KINDS[kind], numbers)
    else:
        folder, kind = arguments
        found = fail_restores(operations, Path(folder), KINDS[kind])
    sys.stdout.write(json.dumps(found) + "\n")


class Saving:
    """A directory with what a scenario begins with, and a run that is about to save to it."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.run = SmallRun()
        self.run.steps(FIRST_STEPS)
        self.before: Any = None
        if scenario.has_checkpoint:
            with Saver(folder) as saver:
                saver.save(self.run.state)
            self.before = contents(self.run)
        self.run.step()
        self.run.state.global_step -= scenario.same_step
        self.after = contents(self.run)
        self.saver = Saver(folder, max_to_keep=scenario.max_to_keep, background=scenario.background)

    def save(self) -> None:
        """As a session does at its end."""
        self.saver.save(self.run.state)
        self.saver.wait()

    def close(self) -> None:
        """Lets others in."""
        self.saver.close()


def fail_saves(
    operations: Operations, scenario: Scenario, folder: Path, error: int, numbers: Iterator[int]
) -> dict[str, Any]:
    """Makes the operations of a save fail in turn that have these numbers."""
    problems: list[str] = []
    saving = Saving(scenario, folder)
    saving.saver.close()
    template = folder.with_name("template")
    folder.mkdir(exist_ok=True)
    shutil.copytree(folder, template)
    reader = SmallRun()
    failed = 0
    for number in numbers:
        shutil.rmtree(folder)
        shutil.copytree(template, folder)
        saving.saver = Saver(folder, max_to_keep=scenario.max_to_keep, background=scenario.background)
        saved, raised = False, ""
        with operations.failing(folder, number, error):
            try:
                saving.save()
                saved = True
            except (OpError, KeyboardInterrupt) as failure:
                raised = repr(failure)
            except RuntimeError as failure:
                # Python's conditions say that they hold no lock when an interrupt hits them as they give it back.
                if not isinstance(failure.__context__, KeyboardInterrupt):
                    raise
                raised = repr(failure)
            except OSError as failure:
                problems.append(f"{number} {operations.failed_at}: an error without a name: {failure!r}")
        place = operations.failed_at
        if not place:
            saving.close()
            break
        failed = number
        try:
            found = check(saving, folder, reader, saved=saved)
        except OpError as failure:
            found = [f"the next save failed: {failure}"]
            saving.close()
        problems += [f"{number} {place}: {problem} ({raised or 'saved'})" for problem in found]
    return {"operations": failed, "problems": problems}


def check(saving: Saving, folder: Path, reader: SmallRun, *, saved: bool) -> list[str]:
    """What is not as it should be after a save that failed, or did not in spite of a failure."""
    found = []
    with suppress(OpError):  # an interrupt did not end a save in the background
        saving.saver.wait()
    present = restored(folder, reader)
    if present != saving.after and (saved or present != saving.before):
        found.append("neither the old nor the new checkpoint was restored" if not saved else "the new one was not")
    saving.save()  # the run goes on, and the next save makes up for it
    if restored(folder, reader) != saving.after:
        found.append("the next save does not restore")
    left = [path.name for path in folder.iterdir() if path.name.endswith((".saving", ".tmp"))]
    saving.close()
    if left:
        found.append(f"left behind: {left}")
    if contents(saving.run) != saving.after:
        found.append("the run itself was changed")
    return found


def restored(folder: Path, reader: SmallRun) -> Any:
    """What the directory gives back; None if it has no checkpoint, a text if it cannot be restored."""
    try:
        return None if Saver(folder).restore(reader.state) is None else contents(reader)
    except OpError as failure:
        return repr(failure)


def fail_restores(operations: Operations, folder: Path, error: int) -> dict[str, Any]:
    """Makes each operation of a restore fail in turn; the directory has two checkpoints."""
    problems: list[str] = []
    run = SmallRun()
    run.steps(FIRST_STEPS)
    with Saver(folder) as saver:
        saver.save(run.state)
        older = contents(run)
        run.step()
        saver.save(run.state)
        newer = contents(run)
    reader = SmallRun()
    reader.steps(1)
    number = 0
    while True:
        number += 1
        before = contents(reader)
        result, interrupted = "", False
        with operations.failing(folder, number, error):
            try:
                step = Saver(folder).restore(reader.state)
                result = "nothing" if step is None else "restored"
            except OpError as failure:
                result = repr(failure)
            except KeyboardInterrupt:
                interrupted = True
        place = operations.failed_at
        if not place:
            return {"operations": number - 1, "problems": problems}
        now = contents(reader)
        if result == "restored" and now not in (older, newer):
            problems.append(f"{number} {place}: what was restored is not what was saved")
        if result not in {"restored", ""} and now != before:
            problems.append(f"{number} {place}: {result}, and the run was changed")
        if result == "nothing":
            problems.append(f"{number} {place}: taken for an empty directory")
        if not interrupted and result != "restored" and "cannot be listed" not in result:
            problems.append(f"{number} {place}: {result} although an older one is whole")
        if restored(folder, reader) != newer:
            problems.append(f"{number} {place}: the next restore is not whole")


if __name__ == "__main__":
    main(*sys.argv[1:])
