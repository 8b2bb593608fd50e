"""Atomic replacement of small files that other processes read, on any fsspec path."""

from __future__ import annotations

import uuid

import fsspec


def write_text(path: str, text: str) -> None:
    """Replaces a file by this text; a reader sees the old text or the new one, never a part."""
    write_bytes(path, text.encode())


def write_bytes(path: str, content: bytes) -> None:
    """Replaces a file by these bytes; a reader sees the old ones or the new ones, never a part.

    The bytes are written to ``<file>-tmp.<random>`` in the same folder, which is then moved into place. Missing folders
    are created.
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
    """Returns the text of a file, or None if it does not exist."""
    content = read_bytes(path)
    return None if content is None else content.decode()


def read_bytes(path: str) -> bytes | None:
    """Returns the content of a file, or None if it does not exist."""
    files, name = fsspec.core.url_to_fs(path)
    try:
        return bytes(files.cat_file(name))
    except FileNotFoundError:
        return None


def remove(path: str) -> None:
    """Removes a file. Does nothing if it does not exist."""
    files, name = fsspec.core.url_to_fs(path)
    try:
        files.rm_file(name)
    except FileNotFoundError:
        return


def names_in(path: str) -> list[str]:
    """Returns the names of the files and folders in a folder, sorted; none if the folder does not exist."""
    files, name = fsspec.core.url_to_fs(path)
    files.invalidate_cache(name)  # remote file systems cache listings, and other processes write here
    try:
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in files.ls(name, detail=False))
    except (FileNotFoundError, NotADirectoryError):
        return []
