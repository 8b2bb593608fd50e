"""Error output of commands: one line for a usage error, and the user's own frames for errors in the user's code."""

from __future__ import annotations

import errno
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from monolith.errors import FileUnavailableError, OpError, StorageFullError

if TYPE_CHECKING:
    from collections.abc import Iterator

FAILED = 1
INTERRUPTED = 130
"""Ended by Ctrl-C, as the shell reports it."""
STORAGE_FAILED = 74
"""EX_IOERR of sysexits.h: a supervisor may start the run elsewhere."""

_OF_STORAGE = frozenset({errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_PACKAGE = Path(__file__).resolve().parent.parent
_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib")).resolve()
_LIBRARIES = frozenset({"site-packages", "dist-packages"})


def failure_of(error: Exception, *, command: str, task: str | None = None) -> tuple[str, int] | None:
    """Returns the text to print and the exit status; None for an internal error, which keeps its full traceback.

    Args:
        error: The error that ended the command.
        command: Its name.
        task: ``module:Class`` of the task, whose package is the user's wherever it is installed; None: no user code is
            involved.
    """
    status = STORAGE_FAILED if _is_of_storage(error) else FAILED
    root = _root_of(task)
    where = None if task is None else _place_of(error, root)
    if where is not None:
        line = f"monolith {command}: error: your code raised {type(error).__name__} at {where}"
        return f"{_from_users_code(error, root)}{line}\n", status
    if isinstance(error, OpError | OSError | ValueError):
        return f"monolith {command}: error: {' '.join(str(error).split())}\n", status
    return None


def _is_of_storage(error: Exception) -> bool:
    """Returns whether it is the storage that fails: another start on this machine will hardly do better."""
    return isinstance(error, FileUnavailableError | StorageFullError) or (
        isinstance(error, OSError) and error.errno in _OF_STORAGE
    )


def _root_of(task: str | None) -> Path | None:
    """Returns the folder of the task's package, or the file of its module."""
    module = None if task is None else sys.modules.get(task.partition(":")[0].partition(".")[0])
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    path = Path(file).resolve()
    return path.parent if path.stem == "__init__" else path


def _is_of_user(filename: str, root: Path | None) -> bool:
    if filename.startswith("<"):
        return False
    path = Path(filename).resolve()
    if path.is_relative_to(_PACKAGE):
        return False
    if root is not None and path.is_relative_to(root):
        return True
    return not (path.is_relative_to(_STANDARD_LIBRARY) or _LIBRARIES.intersection(path.parts))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields the error and what it came from, as Python prints them."""
    seen: set[int] = set()
    next_error: BaseException | None = error
    while next_error is not None and id(next_error) not in seen:
        seen.add(id(next_error))
        yield next_error
        next_error = next_error.__cause__ or (None if next_error.__suppress_context__ else next_error.__context__)


def _place_of(error: Exception, root: Path | None) -> str | None:
    """File and line of the user's last frame; None where no code of the user's took part."""
    for link in _chain(error):
        if isinstance(link, SyntaxError) and link.filename is not None and _is_of_user(link.filename, root):
            return f"{link.filename}:{link.lineno}"
        frames = [frame for frame in traceback.extract_tb(link.__traceback__) if _is_of_user(frame.filename, root)]
        if frames:
            return f"{frames[-1].filename}:{frames[-1].lineno}"
    return None


def _from_users_code(error: Exception, root: Path | None) -> str:
    """Returns the traceback without the frames of ours that lead to the user's first one."""
    whole = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = whole
    while part is not None:
        first = next((number for number, frame in enumerate(part.stack) if _is_of_user(frame.filename, root)), None)
        del part.stack[: len(part.stack) if first is None else first]
        part = part.__cause__ or part.__context__
    return "".join(whole.format())
