"""Packages as an installer leaves them, on the path for a while: their code, and a folder with their entry points."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parent / "other_package"
"""Adds the transport ``mem2``, and the discovery services ``board`` and ``roster``."""


@contextmanager
def installed(*folders: Path) -> Iterator[None]:
    """Within it these folders are on the path."""
    before = list(sys.path)
    sys.path[:0] = map(str, folders)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before


def write_package(folder: Path, name: str, entry_points: str, code: str = "") -> Path:
    """Writes a package of one module; returns the folder that has both."""
    site = folder / name
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    (site / f"{name}.py").write_text(code)
    return site
