"""Hooks of a session, one concern per file.

May import everything below it; `monolith.train` is above. Read `monolith.hook` first: it specifies when a hook is
called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith._deprecated import former_names as _former_names
from monolith.hooks.background_work import AsyncPushHook, EnqueueHook, FetchAllCachedVariablesHook
from monolith.hooks.barrier import BarrierHook, BarrierSaverListener
from monolith.hooks.checkpoint_restorer import CheckpointRestorerHook
from monolith.hooks.checkpoint_saver import NoFirstSaveCheckpointSaverHook
from monolith.hooks.current_session import SetCurrentSessionHook
from monolith.hooks.listeners import (
    HashTableCheckpointRestorerListener,
    HashTableCheckpointSaverListener,
    RestorerListener,
    SaveGuard,
    SaverListener,
)
from monolith.hooks.marker_files import ReqTimeControlDumpHook, SyncTrainingForceDumpHook, SyncTrainingSaverControlHook
from monolith.hooks.parameter_sync import ParameterSyncHook, SyncBackend
from monolith.hooks.profiling import CudaProfilerHook, ProfilerHook, ProfileWindows
from monolith.hooks.progress import ProgressHook
from monolith.hooks.ps_health import PsHealthHook
from monolith.hooks.publish import DeltaPublishHook
from monolith.hooks.ranks import BroadcastGlobalVariablesHook, EofHook, SyncTrainingBarrierSaverListener
from monolith.hooks.server import ServerHook
from monolith.hooks.slow_start import CustomGlobalStepWaiterHook, slow_start_step
from monolith.hooks.stopping import EarlyStop, EarlyStoppingHook, NanLossDuringTrainingError, NanTensorHook
from monolith.hooks.summaries import MlflowHook, RecordHook, RunRecordWriter, TensorBoardHook, WandbHook
from monolith.hooks.tables import EvictionHook, SyncTrainingInfoHook, describe_tables
from monolith.hooks.throughput import HeartbeatHook, StepCounterHook, StepRate, ThroughputMetricHook
from monolith.hooks.timer import (
    SecondOrStepTimer,
    SecondOrStepTimerWithTideSetting,
    TideStoppingHook,
    TideWindow,
    before,
    tide_available_now,
)
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
    "BroadcastGlobalVariablesHook",
    "CheckpointRestorerHook",
    "ChiefSyncHook",
    "CudaProfilerHook",
    "CustomGlobalStepWaiterHook",
    "DeltaPublishHook",
    "EarlyStop",
    "EarlyStoppingHook",
    "EnqueueHook",
    "EofHook",
    "EvictionHook",
    "FetchAllCachedVariablesHook",
    "HashTableCheckpointRestorerListener",
    "HashTableCheckpointSaverListener",
    "HeartbeatHook",
    "InProcessFlags",
    "MlflowHook",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "NoFirstSaveCheckpointSaverHook",
    "ParameterSyncHook",
    "ProfileWindows",
    "ProfilerHook",
    "ProgressHook",
    "PsHealthHook",
    "RecordHook",
    "ReqTimeControlDumpHook",
    "RestorerListener",
    "RunRecordWriter",
    "SaveGuard",
    "SaverListener",
    "SecondOrStepTimer",
    "SecondOrStepTimerWithTideSetting",
    "ServerHook",
    "SetCurrentSessionHook",
    "SharedFlags",
    "StepCounterHook",
    "StepRate",
    "SyncBackend",
    "SyncHelper",
    "SyncTrainingBarrierSaverListener",
    "SyncTrainingForceDumpHook",
    "SyncTrainingInfoHook",
    "SyncTrainingSaverControlHook",
    "TensorBoardHook",
    "ThroughputMetricHook",
    "TideStoppingHook",
    "TideWindow",
    "TrainingHooksHelper",
    "WandbHook",
    "WorkerSyncHook",
    "before",
    "describe_tables",
    "slow_start_step",
    "tide_available_now",
]

if not TYPE_CHECKING:  # type checkers accept only the current names
    __getattr__ = _former_names(__name__, {"RecordWriter": "RunRecordWriter"})
