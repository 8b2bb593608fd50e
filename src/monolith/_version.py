"""The version of the package and of the core it needs; read by the build, so it is written nowhere else."""

from __future__ import annotations

__version__ = "0.1.0"
