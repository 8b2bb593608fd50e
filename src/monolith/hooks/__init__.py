"""Hooks of a session, one concern per file.

May import everything below it; `monolith.train` is above. Read `monolith.hook` first: it specifies when a hook is
called.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__, {"RecordWriter": "RunRecordWriter"})
