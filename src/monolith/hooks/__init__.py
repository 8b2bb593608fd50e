"""What can be attached to a session, one concern a file.

May import: everything below `train`, and `train` itself. Read `monolith.hook` first: it says when a hook is called.
"""

from __future__ import annotations

from monolith.hooks.async_push import AsyncPushHook
from monolith.hooks.enqueue import EnqueueHook

__all__ = ["AsyncPushHook", "EnqueueHook"]
