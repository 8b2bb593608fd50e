"""C++ programs to compare with, compiled in the run for this machine."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

from monolith.cli._bench.skip import RowSkippedError

if TYPE_CHECKING:
    from pathlib import Path


def compile_program(source: Path, folder: Path, *flags: str) -> Path:
    """Compiles a source of this package into a folder and returns the program, named as its source is.

    Raises:
        RowSkippedError: there is no compiler.
    """
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise RowSkippedError(f"{source.name} is compiled in the run and no C++ compiler was found; install g++")
    program = folder / source.stem
    # A compiler found on the path and a source of this package.
    subprocess.run([compiler, "-std=c++20", *flags, source, "-o", program], check=True)  # noqa: S603
    return program
