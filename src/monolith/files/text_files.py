"""Small files that other processes read, on any fsspec path: each is replaced atomically and durably (`Storage`)."""

from __future__ import annotations

from monolith.errors import NotFoundError
from monolith.files.storage import open_storage, storage_of


def write_text(path: str, text: str) -> None:
    """Replaces a file by this text; a reader sees the old text or the new one, never a part."""
    write_bytes(path, text.encode())


def write_bytes(path: str, content: bytes) -> None:
    """Replaces a file by these bytes, or creates it and missing folders; a reader never sees a part of them."""
    storage, name = storage_of(path)
    storage.make()
    storage.replace(name, content)


def read_text(path: str) -> str | None:
    """Returns the text of a file, or None if it does not exist."""
    content = read_bytes(path)
    return None if content is None else content.decode()


def read_bytes(path: str) -> bytes | None:
    """Returns the content of a file, or None if it does not exist."""
    storage, name = storage_of(path)
    try:
        return storage.read(name)
    except NotFoundError:
        return None


def remove(path: str) -> None:
    """Removes a file. Does nothing if it does not exist."""
    storage, name = storage_of(path)
    storage.remove(name)


def names_in(path: str) -> list[str]:
    """Returns the names of the files and folders in a folder, sorted; none if the folder does not exist."""
    return open_storage(path).names()
