"""Hooks of a session, one concern per file.

May import everything below it; `monolith.train` is above. Read `monolith.hook` first: it specifies when a hook is
called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith._deprecated import former_names as _former_names
from monolith.hooks.async_push import AsyncPushHook
from monolith.hooks.barrier import BarrierHook, BarrierSaverListener
from monolith.hooks.broadcast import BroadcastGlobalVariablesHook
from monolith.hooks.checkpoint_restorer import CheckpointRestorerHook
from monolith.hooks.checkpoint_saver import NoFirstSaveCheckpointSaverHook
from monolith.hooks.current_session import SetCurrentSessionHook
from monolith.hooks.early_stop import EarlyStop, EarlyStoppingHook
from monolith.hooks.end_of_data import EofHook
from monolith.hooks.enqueue import EnqueueHook
from monolith.hooks.eviction import EvictionHook
from monolith.hooks.experiment_trackers import MlflowHook, WandbHook
from monolith.hooks.fetch_cached_variables import FetchAllCachedVariablesHook
from monolith.hooks.marker_files import SyncTrainingForceDumpHook, SyncTrainingSaverControlHook
from monolith.hooks.nan_guard import NanLossDuringTrainingError, NanTensorHook
from monolith.hooks.parameter_sync import ParameterSyncHook, SyncBackend
from monolith.hooks.profiling import CudaProfilerHook, ProfilerHook, ProfileWindows
from monolith.hooks.progress import ProgressHook
from monolith.hooks.ps_health import PsHealthHook
from monolith.hooks.publish import DeltaPublishHook
from monolith.hooks.request_time import ReqTimeControlDumpHook
from monolith.hooks.save_agreement import SyncTrainingBarrierSaverListener
from monolith.hooks.saver_listener import RestorerListener, SaveGuard, SaverListener
from monolith.hooks.server import ServerHook
from monolith.hooks.slow_start import CustomGlobalStepWaiterHook, slow_start_step
from monolith.hooks.step_timing import StepCounterHook, StepRate
from monolith.hooks.summaries import RecordHook, RunRecordWriter, TensorBoardHook
from monolith.hooks.table_checkpoint import HashTableCheckpointRestorerListener, HashTableCheckpointSaverListener
from monolith.hooks.table_info import SyncTrainingInfoHook, describe_tables
from monolith.hooks.throughput import HeartbeatHook, ThroughputMetricHook
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
