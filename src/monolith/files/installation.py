"""The folder of this package's installation, and other files in it."""

from __future__ import annotations

from pathlib import Path

__all__ = ["find_main", "get_libops_path"]

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
