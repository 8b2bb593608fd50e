"""Small texts in files that others read while they are written: on any fsspec path, whole or not at all."""

from __future__ import annotations

import uuid

import fsspec


def write_text(path: str, text: str) -> None:
    """Replace a file by this text; a reader sees the old text or the new one, never a part."""
    write_bytes(path, text.encode())


def write_bytes(path: str, content: bytes) -> None:
    """Replace a file by these bytes; a reader sees the old ones or the new ones, never a part.

    They go to a file beside it, named ``<file>-tmp.<random>``, which is then moved into place. Missing folders
    are made.
    """
    files, name = fsspec.core.url_to_fs(path)
    parent, _, base = name.rpartition("/")
    temporary = f"{parent}/{base}-tmp.{uuid.uuid4().hex}"
    files.makedirs(parent, exist_ok=True)
    try:
        files.pipe_file(temporary, content)
        files.mv(temporary, name)
    except BaseException:
        if files.exists(temporary):
            files.rm_file(temporary)
        raise


def read_text(path: str) -> str | None:
    """The text of a file, or None where there is none."""
    content = read_bytes(path)
    return None if content is None else content.decode()


def read_bytes(path: str) -> bytes | None:
    """What a file holds, or None where there is none."""
    files, name = fsspec.core.url_to_fs(path)
    try:
        return bytes(files.cat_file(name))
    except FileNotFoundError:
        return None


def remove(path: str) -> None:
    """Remove a file; one that is not there is no error."""
    files, name = fsspec.core.url_to_fs(path)
    try:
        files.rm_file(name)
    except FileNotFoundError:
        return


def names_in(path: str) -> list[str]:
    """The names of the files and folders in a folder, sorted; none where the folder is not there."""
    files, name = fsspec.core.url_to_fs(path)
    files.invalidate_cache(name)  # remote file systems remember listings, and others write here
    try:
        return sorted(str(found).rstrip("/").rpartition("/")[2] for found in files.ls(name, detail=False))
    except (FileNotFoundError, NotADirectoryError):
        return []
