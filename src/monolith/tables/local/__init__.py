"""The store of this process: `LocalStore` over tables of the C++ core, its plans, updates, history and restores."""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
