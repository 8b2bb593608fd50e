"""Checkpoints: one exact cut of everything a run consists of, committed by a manifest that is written last.

May import: `nn`, `tables`, `optim`, `data`, `observe`, `hook`, `clock`, `errors`; not `train` or `hooks`. Read
`train_state.py` and `saver.py` first; byte grammar: docs/formats/checkpoint.md.

    train_state     what a run is made of
    saver           saves it, restores it
    manifest        what a checkpoint consists of
    retention       which ones stay: decides, touches nothing
    state_files     the text files `checkpoint` and `monolith_checkpoint`
    model_dir_lock  one chief per directory
    _folder         all input and output of the package
"""

from __future__ import annotations

from monolith.checkpoint._catalog import SavedCheckpoint
from monolith.checkpoint.manifest import FORMAT_VERSION, Manifest
from monolith.checkpoint.model_dir_lock import ModelDirLock
from monolith.checkpoint.saver import PendingSave, Saver, SaverOptions
from monolith.checkpoint.state_files import get_monolith_checkpoint_state
from monolith.checkpoint.train_state import Stateful, TrainState

__all__ = [
    "FORMAT_VERSION",
    "Manifest",
    "ModelDirLock",
    "PendingSave",
    "SavedCheckpoint",
    "Saver",
    "SaverOptions",
    "Stateful",
    "TrainState",
    "get_monolith_checkpoint_state",
]
