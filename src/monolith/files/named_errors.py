"""Maps errors of a file system to errors of monolith."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from monolith.errors import (
    FileUnavailableError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    PermissionDeniedError,
    StorageFullError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["named_errors"]

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_NO_NAMES = frozenset({errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR})
"""Errors of the name itself, which no retry and no other disk fixes."""


@contextmanager
def named_errors(place: str, doing: str) -> Iterator[None]:
    """Turns an error of the file system into an `OpError` that names the file."""
    try:
        yield
    except OSError as error:
        raise _named(error, f"'{place}': cannot be {doing}: {error.strerror or error}") from error


def _named(error: OSError, text: str) -> OpError:
    if error.errno in _NO_SPACE:
        return StorageFullError(f"{text}; make room and save again")
    if error.errno in _NOT_ALLOWED:
        return PermissionDeniedError(text)
    if error.errno in _NO_NAMES:
        return InvalidArgumentError(text)
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return NotFoundError(text)
    return FileUnavailableError(text)
