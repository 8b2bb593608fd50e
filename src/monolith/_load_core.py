"""Loads the extension; raises one ImportError that names what was found, what is needed and how to fix it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from monolith import environment
from monolith._version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

REBUILD_COMMAND = "python -m pip install -c constraints.txt --force-reinstall --no-deps ."
"""Run in the project's folder; installs the package with a core built from the same sources."""

INSTRUCTION_SET_VARIABLE = "MONOLITH_CORE_ISA"
"""Names the instruction set that the core is to use: ``baseline``, ``v3`` or ``v4``; the fastest one if not set."""

_LIBRARY_SUFFIXES = frozenset({".so", ".pyd", ".dylib"})


def load_core(search_paths: Iterable[str]) -> ModuleType:
    """Imports ``monolith._core`` and checks that its version is that of the package.

    Args:
        search_paths: The package's ``__path__``, named in the error when the extension is missing or does not load.

    Raises:
        ImportError: The extension is missing, cannot be loaded by this Python, or was built for another version.
        ValueError: ``MONOLITH_CORE_ISA`` names an instruction set that is unknown, or that this processor lacks.
    """
    try:
        core = importlib.import_module("monolith._core")
    except ImportError as error:
        raise ImportError(_refusal(_describe_failure(search_paths, error), found="none")) from None
    version = str(getattr(core, "VERSION", "unknown"))
    if version != __version__:
        raise ImportError(_refusal(f"{core.__file__} is of another version than the package", found=version))
    _choose_instruction_set(core)
    return core


def _choose_instruction_set(core: ModuleType) -> None:
    name = environment.get(INSTRUCTION_SET_VARIABLE)
    if not name:
        return
    try:
        core.use_instruction_set(name)
    except ValueError as error:
        raise ValueError(f"{INSTRUCTION_SET_VARIABLE}: {error}") from None


def _describe_failure(search_paths: Iterable[str], error: ImportError) -> str:
    directories = [Path(entry) for entry in search_paths]
    libraries = [
        file
        for directory in directories
        for file in sorted(directory.glob("_core*"))
        if file.suffix in _LIBRARY_SUFFIXES
    ]
    if libraries:
        python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
        return f"{', '.join(map(str, libraries))} cannot be loaded by {python} ({error})"
    return (
        f"the extension was not built: searched {', '.join(str(directory / '_core*.so') for directory in directories)}"
    )


def _refusal(reason: str, *, found: str) -> str:
    return (
        f"monolith's C++ core is missing or stale: {reason}; version found: {found}, needed: {__version__}. "
        f"Rebuild it in the project's folder with: {REBUILD_COMMAND}"
    )
