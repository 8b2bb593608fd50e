"""Checks of ``--out`` before the work starts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def require_writable(path: Path) -> None:
    """Refuses, before a minute is spent, a report that could not be written."""
    folder = path.resolve().parent
    if not folder.is_dir():
        raise ValueError(f"--out: expected a file in an existing folder, got {path}; make the folder first")
    if path.is_dir():
        raise ValueError(f"--out: expected a file, got the folder {path}; add a file name")
    if not os.access(folder, os.W_OK):
        raise ValueError(f"--out: {folder} cannot be written to; choose another place with --out")
