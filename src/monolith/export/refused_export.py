"""Finds the line of the user's code that prevents a model from being exported."""

from __future__ import annotations

import inspect
import linecache
import re
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from monolith.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

__all__ = ["refusal"]

_LONGEST_REASON = 400
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_FOREIGN = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


def refusal(
    error: BaseException, model_fn: Callable[..., object], *, subject: str, trace: str | None = None
) -> InvalidArgumentError:
    """Returns the error to raise: the innermost line of the user's code, and the beginning of torch's message.

    Args:
        error: The cause.
        model_fn: Function of the user.
        subject: Name of the model and signature, for the message.
        trace: Stack trace of an operation, as recorded by torch; None: that of the error.
    """
    path, line = _line_in(trace or "") or _line_of(error) or _definition(model_fn)
    source = linecache.getline(path, line).strip()
    reason = " ".join(str(error).split())[:_LONGEST_REASON] or type(error).__name__
    return InvalidArgumentError(
        f"{subject}: the model cannot be exported because of {path}:{line}"
        f"{f' ({source})' if source else ''}: {type(error).__name__}: {reason}; write it with torch operations on"
        " batches, or serve the task with its code: monolith serve --task"
    )


def _line_of(error: BaseException) -> tuple[str, int] | None:
    for each in _chain(error):
        own = [
            (frame.f_code.co_filename, line)
            for frame, line in traceback.walk_tb(_traceback(each))
            if _is_users(frame.f_code.co_filename)
        ]
        if own:
            return own[-1]
    return None


def _line_in(trace: str) -> tuple[str, int] | None:
    own = [(each[1], int(each[2])) for each in _FRAME.finditer(trace) if _is_users(each[1])]
    return own[-1] if own else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _traceback(error: BaseException) -> TracebackType | None:
    return error.__traceback__


def _is_users(path: str) -> bool:
    return not path.startswith((*_FOREIGN, "<")) and "/contextlib.py" not in path


def _definition(model_fn: Callable[..., object]) -> tuple[str, int]:
    code = getattr(inspect.unwrap(model_fn), "__code__", None)
    return ("<unknown>", 0) if code is None else (code.co_filename, code.co_firstlineno)
