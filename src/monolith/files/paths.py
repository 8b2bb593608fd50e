"""Paths as text: of this machine, or of a remote file system with its protocol in front, as ``s3://bucket/x``.

It also finds the folder that this package lies in.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import fsspec

from monolith.errors import InvalidArgumentError

_PROTOCOL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(//?|$)")
_ROOT = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:/{0,3}|/+)?")


def isabs(path: str) -> bool:
    """Returns whether a path is absolute: it begins with a slash or names a remote file system.

    >>> isabs("/models"), isabs("hdfs:/models"), isabs("s3://bucket/models"), isabs("models"), isabs("a:b/c")
    (True, True, True, False, False)
    """
    return path.startswith("/") or _PROTOCOL.match(path) is not None


def join(path: str, *parts: str) -> str:
    """Joins parts to a path; an absolute part replaces everything before it.

    >>> join("s3://bucket/models/", "ranker", "checkpoint"), join("models", "/tmp/x"), join("", "x")
    ('s3://bucket/models/ranker/checkpoint', '/tmp/x', 'x')
    """
    for part in parts:
        starts_anew = not path or isabs(part)
        path = part if starts_anew else f"{path.removesuffix('/')}/{part}"
    return path


def is_name(text: str) -> bool:
    """Returns whether a text is one part of a path, which leads to something directly in its folder and nowhere else.

    >>> [is_name(text) for text in ("model.ckpt-60.meta", "..", "", "a/b", "/etc/passwd")]
    [True, False, False, False, False]
    """
    return text not in {"", ".", ".."} and not any(character in text for character in "/\\\0")


def local_path(path: str | os.PathLike[str]) -> Path | None:
    """Returns the path on the file system of this machine; None for any other fsspec path.

    >>> local_path("models"), local_path("file:///models"), local_path("memory://models")
    (PosixPath('models'), PosixPath('/models'), None)
    """
    text = os.fspath(path)
    if "://" not in text and "::" not in text:
        return Path(text)
    filesystem, stripped = fsspec.core.url_to_fs(text)
    protocols = filesystem.protocol if isinstance(filesystem.protocol, tuple) else (filesystem.protocol,)
    return Path(stripped) if "file" in protocols else None


def refuse_special_file(path: str) -> None:
    """Rejects a path that must not be replaced by a file: root would lose ``/dev/null``.

    Raises:
        InvalidArgumentError: the path is a device, a pipe or a socket of this machine.
    """
    local = Path(path)
    if "://" not in path and local.exists() and not (local.is_file() or local.is_dir()):
        raise InvalidArgumentError(f"file '{path}': it is a device, a pipe or a socket; give another name")


def basename(path: str) -> str:
    """Returns the part after the last slash.

    >>> basename("s3://bucket/models/ranker"), basename("ranker"), basename("models/")
    ('ranker', 'ranker', '')
    """
    return path[len(_root(path)) :].rpartition("/")[2]


def dirname(path: str) -> str:
    """Returns the part before the last slash, without slashes at its end unless it is a root.

    >>> dirname("s3://bucket/models"), dirname("/x"), dirname("x"), dirname("memory://x")
    ('s3://bucket', '/', '', 'memory://')
    """
    root = _root(path)
    return root + path[len(root) :].rpartition("/")[0].rstrip("/")


def exists(path: str) -> bool:
    """Returns whether there is a file or folder; bypasses the cached listings of remote file systems."""
    files, name = fsspec.core.url_to_fs(path)
    files.invalidate_cache(name)
    return bool(files.exists(name))


def remove_folder(path: str) -> bool:
    """Removes a folder with everything in it; returns whether there was one."""
    files, name = fsspec.core.url_to_fs(path)
    files.invalidate_cache(name)
    is_folder = bool(files.isdir(name))
    if is_folder:
        files.rm(name, recursive=True)
    return is_folder


def _root(path: str) -> str:
    match = _ROOT.match(path)
    return match.group() if match is not None and isabs(path) else ""


_PACKAGE = "monolith"
_MARKERS = ("/__main__/", "/site-packages/", f"/{_PACKAGE}/")
"""Folders that hold the package, in the order in which they are tried: a Bazel tree, an installation, a checkout."""


def find_main(path: str | Path = __file__) -> str:
    """Returns the folder that contains the package.

    The last occurrence of a marker in the path counts, so that a checkout may lie in a folder of the package's name.

    Args:
        path: A file of the package.

    Raises:
        ValueError: The path has no marker that is followed by the package.
    """
    full_path = str(Path(path).absolute())
    for marker in _MARKERS:
        before, found, _ = full_path.rpartition(marker)
        folder = Path(before or "/") if marker == _MARKERS[-1] else Path(before + marker)
        if found and (folder / _PACKAGE).exists():
            return str(folder)
    raise ValueError(
        f"find_main: no parent folder of {full_path} contains {_PACKAGE!r}; expected one of {_MARKERS} in it"
    )


def get_libops_path(lib_name: str) -> str:
    """Returns the path of a file by its name relative to the folder of the package, such as ``monolith/py.typed``."""
    return str(Path(find_main()) / lib_name)
