"""Checkpoints: one consistent cut of everything a run consists of, committed by a manifest that is written last.

May import: `nn`, `tables`, `optim`, `data`, `observe`, `hook`, `clock`, `errors`; not `train` or `hooks`. Read
`train_state.py` and `saver.py` first; byte grammar: docs/formats/checkpoint.md.

    train_state     what a run is made of
    saver           saves it, restores it
    save_protocol   which processes of a run write a checkpoint, and how they agree
    model_folder    a model alone, by one call each
    manifest        what a checkpoint consists of
    options         how a run is saved, and what may differ in the run that is restored
    restore/        which checkpoint a run starts from, weights under new names, what was lost alone, the tables alone
    inspection      inspects checkpoints without a model
    retention       decides which ones stay, by age and by a metric, and deletes the others
    state_files     the text files `checkpoint` and `monolith_checkpoint`
    model_dir_lock  one chief per directory

Savers of jobs and exports also use: `catalog` (which checkpoints there are), `cut` and `writing`
(how one is made), `restoring`, `adapting` and `snapshots` (how one is read), `tensor_file`, `state_dicts`.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(
    __name__,
    {
        "PartialRecoveryOptions": "SaverConfig",
        "PartialRecoverySaver": "Saver",
        "RestoreOptions": "RestoreConfig",
        "SaverOptions": "SaverConfig",
    },
)
