"""What can be attached to a session, one concern a file.

May import: everything below `train`, and `train` itself. Read `monolith.hook` first: it says when a hook is called.
"""

from __future__ import annotations

from monolith.hooks.async_push import AsyncPushHook
from monolith.hooks.barrier import BarrierHook, BarrierSaverListener
from monolith.hooks.enqueue import EnqueueHook
from monolith.hooks.slow_start import CustomGlobalStepWaiterHook, slow_start_step
from monolith.hooks.tide import TideStoppingHook, TideWindow, before, tide_available_now
from monolith.hooks.timer import SecondOrStepTimer, SecondOrStepTimerWithTideSetting
from monolith.hooks.worker_sync import (
    ChiefSyncHook,
    InProcessFlags,
    SharedFlags,
    SyncHelper,
    TrainingHooksHelper,
    WorkerSyncHook,
)

__all__ = [
    "AsyncPushHook",
    "BarrierHook",
    "BarrierSaverListener",
    "ChiefSyncHook",
    "CustomGlobalStepWaiterHook",
    "EnqueueHook",
    "InProcessFlags",
    "SecondOrStepTimer",
    "SecondOrStepTimerWithTideSetting",
    "SharedFlags",
    "SyncHelper",
    "TideStoppingHook",
    "TideWindow",
    "TrainingHooksHelper",
    "WorkerSyncHook",
    "before",
    "slow_start_step",
    "tide_available_now",
]
