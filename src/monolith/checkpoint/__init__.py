"""Checkpoints: one consistent cut of everything a run consists of, committed by a manifest that is written last.

May import: `nn`, `tables`, `optim`, `data`, `observe`, `hook`, `clock`, `errors`; not `train` or `hooks`. Read
`train_state.py` and `saver.py` first; byte grammar: docs/formats/checkpoint.md.

    train_state     what a run is made of
    saver           saves it, restores it
    model_folder    a model alone, by one call each
    manifest        what a checkpoint consists of
    options         how a run is saved, and what may differ in the run that is restored
    restore/        which checkpoint a run starts from, weights under new names, what was lost alone, the tables alone
    inspection      inspects checkpoints without a model
    best            the best one by a metric stays
    retention       decides which ones stay, deletes the others
    state_files     the text files `checkpoint` and `monolith_checkpoint`
    model_dir_lock  one chief per directory
    folder          all input and output of the package

Savers of jobs and exports also use: `catalog` (which checkpoints there are), `cut` and `writing`
(how one is made), `restoring`, `adapting` and `snapshots` (how one is read), `tensor_file`, `state_dicts`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith._deprecated import former_names as _former_names
from monolith.checkpoint.best import best_checkpoint, keep_best
from monolith.checkpoint.catalog import SavedCheckpoint
from monolith.checkpoint.inspection import get_nas_weight_json
from monolith.checkpoint.manifest import FORMAT_VERSION, Manifest
from monolith.checkpoint.model_dir_lock import ModelDirLock
from monolith.checkpoint.model_folder import load, save
from monolith.checkpoint.options import RestoreConfig, SaverConfig
from monolith.checkpoint.restore.aliases import CUSTOM_RESTORE_OP, calc_feed_dict, generate_alias_map
from monolith.checkpoint.restore.partial_recovery import (
    PartialRecoveryConfig,
    PartialRecoverySaver,
    PsMonitor,
    RestoreOps,
    SaverBuilder,
)
from monolith.checkpoint.restore.rules import (
    SaveHelper,
    copy_checkpoint_state,
    get_checkpoint_state,
    get_latest_checkpoint_state,
    wait_for_monolith_checkpoint,
)
from monolith.checkpoint.restore.store_restore import restore_table_assets, save_table_assets
from monolith.checkpoint.saver import PendingSave, Saver
from monolith.checkpoint.state_files import checkpoint_exists, get_monolith_checkpoint_state
from monolith.checkpoint.train_state import Stateful, TrainState
from monolith.files import isabs

__all__ = [
    "CUSTOM_RESTORE_OP",
    "FORMAT_VERSION",
    "Manifest",
    "ModelDirLock",
    "PartialRecoveryConfig",
    "PartialRecoverySaver",
    "PendingSave",
    "PsMonitor",
    "RestoreConfig",
    "RestoreOps",
    "SaveHelper",
    "SavedCheckpoint",
    "Saver",
    "SaverBuilder",
    "SaverConfig",
    "Stateful",
    "TrainState",
    "best_checkpoint",
    "calc_feed_dict",
    "checkpoint_exists",
    "copy_checkpoint_state",
    "generate_alias_map",
    "get_checkpoint_state",
    "get_latest_checkpoint_state",
    "get_monolith_checkpoint_state",
    "get_nas_weight_json",
    "isabs",
    "keep_best",
    "load",
    "restore_table_assets",
    "save",
    "save_table_assets",
    "wait_for_monolith_checkpoint",
]

if not TYPE_CHECKING:  # type checkers accept only the current names
    __getattr__ = _former_names(
        __name__,
        {
            "PartialRecoveryOptions": "PartialRecoveryConfig",
            "RestoreOptions": "RestoreConfig",
            "SaverOptions": "SaverConfig",
        },
    )
