"""Parameters of tasks as ByteDance Monolith defines them: typed attributes, instantiable classes, a registry, flags."""

from __future__ import annotations

__all__: list[str] = []
