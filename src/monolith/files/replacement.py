"""Atomic replacement of a file."""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from monolith.errors import InvalidArgumentError, NotFoundError
from monolith.files.local_files import named_errors
from monolith.files.paths import refuse_special_file

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def replaced_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary name in the folder of `path`; at the end the file replaces `path`, on an error it is removed.

    Raises:
        InvalidArgumentError: the path is a URL, a folder, a device, a pipe or a socket.
        NotFoundError: there is no such folder.
        OpError: the file cannot replace `path`; no temporary file remains, and `path` is unchanged.
    """
    name = os.fspath(path)
    if "://" in name:
        raise InvalidArgumentError(f"file '{name}': a local path is needed, got a URL; write a local file and copy it")
    refuse_special_file(name)
    target = Path(name)
    if target.is_dir():
        raise InvalidArgumentError(f"file '{name}': it is a folder; give the name of a file in it")
    if not target.parent.is_dir():
        raise NotFoundError(f"'{name}': cannot be written: there is no folder '{target.parent}'")
    temporary = target.with_name(f"{target.name}.tmp-{secrets.token_hex(4)}")
    try:
        yield temporary
        with named_errors(name, "written"):
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
