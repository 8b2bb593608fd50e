"""The store of this process: `LocalStore` over tables of the C++ core, its plans, updates, history and restores."""

from __future__ import annotations

__all__: list[str] = []
