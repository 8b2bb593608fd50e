"""The training system: what runs a task.

May import: everything below it. Read `task.py` first, then `session.py`: a session runs a task step by
step. `trainer.py` is the comfortable way to use one.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

_get, __dir__, __all__ = _open_door(__name__, {"InputOptions": "InputConfig", "JobSettings": "JobProgramConfig"})


def __getattr__(name: str) -> object:
    # A process-wide setting, so it is read on access.
    return _get("preemption_errors")() if name == "PREEMPTION_ERRORS" else _get(name)
