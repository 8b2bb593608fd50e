"""Files by name or pattern, local or at a URL that fsspec knows."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import fsspec

from monolith.errors import InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["find_files", "open_file"]


def find_files(pattern: str, options: Mapping[str, Any]) -> list[str]:
    """The files that match, in no order; a name without a pattern in it is taken as it stands."""
    is_local = "://" not in pattern
    # A name that exists is meant as it stands, whatever characters it has.
    if not glob.has_magic(pattern) or (is_local and Path(pattern).is_file()):
        return [pattern]
    if not is_local:
        system, place = fsspec.core.url_to_fs(pattern, **options)
        entries = system.glob(place, detail=True)
        found = [system.unstrip_protocol(name) for name, entry in entries.items() if entry["type"] != "directory"]
    else:
        found = [
            name
            for name in glob.glob(pattern, recursive=True)  # noqa: PTH207 - any pattern, absolute or not
            if not Path(name).is_dir()
        ]
    return found


def open_file(path: str, options: Mapping[str, Any]) -> BinaryIO:
    """A file, open to read from its start.

    Raises:
        NotFoundError: there is no such file.
        InvalidArgumentError: it is a folder.
    """
    try:
        if "://" in path:
            return cast("BinaryIO", fsspec.open(path, "rb", **options).open())
        return Path(path).open("rb", buffering=0)
    except FileNotFoundError as error:
        raise NotFoundError(f"file '{path}': there is no such file") from error
    except IsADirectoryError as error:
        raise InvalidArgumentError(f"file '{path}': it is a folder; name its files, as in '{path}/*'") from error
