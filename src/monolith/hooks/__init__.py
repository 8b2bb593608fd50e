"""What can be attached to a session, one concern a file.

May import: everything below `train`, and `train` itself. Read `monolith.hook` first: it says when a hook is called.
"""

from __future__ import annotations

from monolith.hooks.async_push import AsyncPushHook
from monolith.hooks.checkpoint_restorer import CheckpointRestorerHook
from monolith.hooks.checkpoint_saver import NoFirstSaveCheckpointSaverHook
from monolith.hooks.current_session import SetCurrentSessionHook
from monolith.hooks.enqueue import EnqueueHook
from monolith.hooks.saver_listener import RestorerListener, SaverListener
from monolith.hooks.slow_start import CustomGlobalStepWaiterHook, slow_start_step
from monolith.hooks.table_checkpoint import HashTableCheckpointRestorerListener, HashTableCheckpointSaverListener
from monolith.hooks.tide import TideStoppingHook, TideWindow, before, tide_available_now
from monolith.hooks.timer import SecondOrStepTimer, SecondOrStepTimerWithTideSetting

__all__ = [
    "AsyncPushHook",
    "CheckpointRestorerHook",
    "CustomGlobalStepWaiterHook",
    "EnqueueHook",
    "HashTableCheckpointRestorerListener",
    "HashTableCheckpointSaverListener",
    "NoFirstSaveCheckpointSaverHook",
    "RestorerListener",
    "SaverListener",
    "SecondOrStepTimer",
    "SecondOrStepTimerWithTideSetting",
    "SetCurrentSessionHook",
    "TideStoppingHook",
    "TideWindow",
    "before",
    "slow_start_step",
    "tide_available_now",
]
