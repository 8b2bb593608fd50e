"""The process that is watched while a user of storage writes.

user_process.py LIBRARY record FOLDER: writes down, in FOLDER/USER.record, what one write of each user changes
user_process.py LIBRARY fail FOLDER KIND: a write of each user for every operation, which fails; prints problems

Each user has a prepared folder of its name in FOLDER.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from file_faults.operations import Operations
from file_faults.process import KINDS
from file_faults.users import USERS, User
from monolith.errors import OpError


def main(library: str, what: str, place: str, *kind: str) -> None:
    """Does one thing; prints a line of JSON."""
    logging.disable(logging.CRITICAL)
    operations, found = Operations(library), {}
    for name, user in USERS.items():
        folder = Path(place) / name
        if what == "record":
            with operations.recorded(folder, folder.with_suffix(".record")):
                user.write(folder)
        else:
            found[name] = fail_writes(operations, user, folder, KINDS[kind[0]])
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)  # as a process that is killed: nothing is closed


def fail_writes(operations: Operations, user: User, folder: Path, error: int) -> dict[str, Any]:
    """Makes each operation of a write fail in turn."""
    problems: list[str] = []
    template = folder.with_suffix(".template")
    shutil.copytree(folder, template)
    before = user.read(folder)
    renew(folder, template)
    user.write(folder)
    after = user.read(folder)
    number = 0
    while True:
        number += 1
        renew(folder, template)
        raised = ""
        with operations.failing(folder, number, error):
            try:
                user.write(folder)
            except (OpError, OSError, KeyboardInterrupt) as failure:
                raised = repr(failure)
        place = operations.failed_at
        if not place:
            return {"operations": number - 1, "problems": problems}
        left = [path.name for path in folder.rglob("*.tmp")]
        if error and left and not place.startswith("unlink"):
            problems.append(f"{number} {place}: {left} was left ({raised})")
        try:
            found = user.read(folder)
            if not user.is_between(before, found, after) or (not raised and not user.has_all(found, after)):
                problems.append(f"{number} {place}: {found}, before {before}, after {after} ({raised or 'written'})")
            user.write(folder)
            found = user.read(folder)
            if not user.has_all(found, after):
                problems.append(f"{number} {place}: the next write leaves {found}, not {after} ({raised or 'written'})")
        except (OpError, OSError, AssertionError, ValueError, IndexError) as failure:
            problems.append(f"{number} {place}: {failure!r} ({raised or 'written'})")


def renew(folder: Path, template: Path) -> None:
    """Makes the folder as it was."""
    shutil.rmtree(folder)
    shutil.copytree(template, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
