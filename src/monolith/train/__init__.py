"""The training system: what runs a task.

May import: everything below it, and `hooks`. Read `async_function` for work that runs beside the next step.
"""

from __future__ import annotations

from monolith.train.async_function import AsyncFunctionMgr

__all__ = ["AsyncFunctionMgr"]
