"""Decides which checkpoints to keep, deletes the others, and keeps the text files of a model directory up to date.

The best checkpoint by a metric of its evaluation is kept, too. The file `best_checkpoint` names it. Only `keep_best`
writes this file, and savers read it at every save, so that an evaluation in another process may run concurrently with
training.
"""

from __future__ import annotations

import json
import logging
import math
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal

from monolith.checkpoint.catalog import Catalog, full_local_path, read_manifest
from monolith.checkpoint.protos.checkpoint_state_pb2 import CheckpointState, MonolithCheckpointState
from monolith.checkpoint.state_files import (
    MONOLITH_CHECKPOINT,
    checkpoint_exists,
    full_path,
    get_monolith_checkpoint_state,
    split_path,
    write_checkpoint_state,
    write_monolith_checkpoint_state,
)
from monolith.checkpoint.writing import remove_prefix
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError, OpError
from monolith.files import StoragePath, open_storage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from monolith.files import Storage

_HOUR = 3600.0
BEST = "best"
"""The name by which the best checkpoint is restored."""
FILE = "best_checkpoint"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeptCheckpoint:
    """A checkpoint that exists."""

    path: str
    time: float
    """Unix seconds of its save."""


class Retention:
    """Keeps the newest checkpoints, one every given number of hours for good, and exempt ones, which are not counted.

    >>> retention = Retention(max_to_keep=1, keep_every_hours=None, now=0.0)
    >>> retention.record("model.ckpt-10", 1.0), retention.record("model.ckpt-20", 2.0)
    ([], ['model.ckpt-10'])
    """

    def __init__(self, *, max_to_keep: int | None, keep_every_hours: float | None, now: float) -> None:
        if max_to_keep is not None and max_to_keep < 0:
            raise InvalidArgumentError(f"max_to_keep must be >= 0 (0 and None keep all), got {max_to_keep}")
        if keep_every_hours is not None and not keep_every_hours > 0:
            raise InvalidArgumentError(f"keep_every_hours must be > 0, got {keep_every_hours}")
        self._max_to_keep = max_to_keep or None
        self._seconds = None if keep_every_hours is None else keep_every_hours * _HOUR
        self.last_preserved = now
        """When the last one was kept for good, or the run began: the next one is `keep_every_hours` later."""
        self._kept: list[KeptCheckpoint] = []

    @property
    def kept(self) -> tuple[KeptCheckpoint, ...]:
        """Checkpoints that exist and may be deleted later, oldest first."""
        return tuple(self._kept)

    def recover(self, kept: Iterable[KeptCheckpoint], *, last_preserved: float | None = None) -> None:
        """Loads the checkpoints of an earlier run."""
        self._kept = list(kept)
        if last_preserved is not None:
            self.last_preserved = last_preserved

    def record(self, path: str, time: float, *, exempt: Collection[str] = ()) -> list[str]:
        """Records a committed checkpoint; returns those to delete now."""
        self._kept = [checkpoint for checkpoint in self._kept if checkpoint.path != path] + [KeptCheckpoint(path, time)]
        counted = [checkpoint for checkpoint in self._kept if checkpoint.path not in exempt]
        surplus = counted[: -self._max_to_keep] if self._max_to_keep else []
        gone = {checkpoint.path for checkpoint in surplus}
        self._kept = [checkpoint for checkpoint in self._kept if checkpoint.path not in gone]
        return [checkpoint.path for checkpoint in surplus if not self._preserve(checkpoint)]

    def _preserve(self, checkpoint: KeptCheckpoint) -> bool:
        """Returns whether a checkpoint is kept for good; it then leaves the list, since its fate is decided."""
        if self._seconds is None or checkpoint.time <= self.last_preserved + self._seconds:
            return False
        self.last_preserved += self._seconds
        return True


class CheckpointRecords:
    """The records of a model directory about its checkpoints. One thread at a time."""

    def __init__(self, folder: Storage, catalog: Catalog, retention: Retention) -> None:
        self._folder = folder
        self._catalog = catalog
        self._retention = retention

    @property
    def paths(self) -> list[str]:
        """Full prefixes of the checkpoints that are listed, oldest first."""
        return [checkpoint.path for checkpoint in self._retention.kept]

    def create_state_file(self) -> None:
        """Creates `monolith_checkpoint` if it is missing."""
        if not self._folder.exists(MONOLITH_CHECKPOINT):
            self._folder.make()
            state = MonolithCheckpointState(builtin_hash_table_type=MonolithCheckpointState.MULTI_CUCKOO_HASH_MAP)
            write_monolith_checkpoint_state(self._folder, state)

    def recover(self) -> None:
        """Loads the records of an earlier run; lists exempt checkpoints even if `checkpoint` does not."""
        state = self._catalog.state()
        times: dict[str, float] = {}
        if state is not None:
            times = dict(zip(state.all_model_checkpoint_paths, state.all_model_checkpoint_timestamps, strict=False))
        listed = self._catalog.listed()
        exempt = [path for path in self._monolith_state().exempt_model_checkpoint_paths if path not in listed]
        kept = []
        for path in [*exempt, *listed]:
            with suppress(OpError):  # unreadable: kept for manual inspection
                kept.append(KeptCheckpoint(path, times.get(path) or read_manifest(path).created))
        preserved = state is not None and state.HasField("last_preserved_timestamp")
        last = state.last_preserved_timestamp if state is not None and preserved else None
        self._retention.recover(kept, last_preserved=last)

    def record(self, path: str, created: float) -> None:
        """Updates `checkpoint` and `monolith_checkpoint` after a commit, then deletes surplus checkpoints."""
        monolith = self._monolith_state()
        exempt = set(monolith.exempt_model_checkpoint_paths)
        best = read_best(self._folder)
        if best is not None:
            exempt.add(best.path)
        surplus = self._retention.record(path, created, exempt=exempt)
        kept = self._retention.kept
        write_checkpoint_state(
            self._folder,
            CheckpointState(
                model_checkpoint_path=path,
                all_model_checkpoint_paths=[checkpoint.path for checkpoint in kept],
                all_model_checkpoint_timestamps=[checkpoint.time for checkpoint in kept],
                last_preserved_timestamp=self._retention.last_preserved,
            ),
        )
        monolith.last_checkpoint_save_timestamp = int(created)
        monolith.builtin_hash_table_type = MonolithCheckpointState.MULTI_CUCKOO_HASH_MAP
        write_monolith_checkpoint_state(self._folder, monolith)
        for old in surplus:
            folder, prefix = split_path(old)
            if folder == self._catalog.root:  # a checkpoint of another directory must not be deleted
                remove_prefix(self._folder, prefix)

    def _monolith_state(self) -> MonolithCheckpointState:
        present = None
        if self._folder.exists(MONOLITH_CHECKPOINT):
            present = get_monolith_checkpoint_state(self._folder.path, remove_invalid_path=True)
        return MonolithCheckpointState() if present is None else present


@dataclass(frozen=True, slots=True, kw_only=True)
class BestCheckpoint:
    """A checkpoint, and by which value of which metric it is the best one."""

    path: str
    """Its prefix, with its folder."""
    metric: str
    mode: Literal["max", "min"]
    value: float


def best_checkpoint(model_dir: StoragePath) -> BestCheckpoint | None:
    """Returns the best one of a model directory; None if `keep_best` has named none.

    Raises:
        DataLossError: the file that names it is damaged.
    """
    return read_best(open_storage(model_dir))


def keep_best(
    model_dir: StoragePath,
    values: Mapping[str, float],
    *,
    checkpoint: str,
    metric: str = "auc",
    mode: Literal["max", "min"] = "max",
) -> BestCheckpoint | None:
    """Keeps a checkpoint if its value is better than that of the best one so far, which retention may then delete.

    Args:
        model_dir: Directory of the checkpoint.
        values: Results of its evaluation, such as `Trainer.evaluate` returns.
        checkpoint: Its prefix, such as ``model.ckpt-60``.
        metric: Which of the values decides. One that is NaN is never the best.
        mode: Whether larger or smaller values are better.

    Returns:
        The best one now; None if there is none.

    Raises:
        InvalidArgumentError: there is no such metric or mode.
        NotFoundError: there is no such checkpoint.
    """
    if mode not in {"max", "min"}:
        raise InvalidArgumentError(f"keep_best: mode must be 'max' or 'min', got {mode!r}")
    if metric not in values:
        raise InvalidArgumentError(f"keep_best: metric {metric!r} is not among the values, which are {sorted(values)}")
    folder = open_storage(model_dir)
    best = BestCheckpoint(path=split_path(checkpoint)[1], metric=metric, mode=mode, value=float(values[metric]))
    former = read_best(folder)
    if not _is_better(best, former):
        return former
    _write(folder, best)
    full = full_path(full_local_path(folder.path), best.path)
    if not checkpoint_exists(full):  # checked after writing: a concurrent saver may just have deleted it
        if former is None:
            folder.remove(FILE)
        else:
            _write(folder, former)
        raise NotFoundError(f"keep_best: there is no checkpoint '{full}'; evaluate one that was saved and is kept")
    return replace(best, path=full)


def read_best(folder: Storage) -> BestCheckpoint | None:
    """Reads the best checkpoint of a folder, like `best_checkpoint`."""
    if not folder.exists(FILE):
        return None
    try:
        best = BestCheckpoint(**json.loads(folder.read(FILE)))
        return replace(best, path=full_path(full_local_path(folder.path), best.path))
    except (ValueError, TypeError, AttributeError) as error:
        raise DataLossError(
            f"'{folder.place(FILE)}' does not name a checkpoint: {error!r}; remove the file to start from scratch"
        ) from error


def _is_better(candidate: BestCheckpoint, former: BestCheckpoint | None) -> bool:
    if math.isnan(candidate.value):
        _log.warning("checkpoint '%s' is not kept as the best one: its %s is NaN", candidate.path, candidate.metric)
        return False
    if former is None or (former.metric, former.mode) != (candidate.metric, candidate.mode):
        return True
    better = candidate.value > former.value if candidate.mode == "max" else candidate.value < former.value
    return better or not checkpoint_exists(former.path)


def _write(folder: Storage, best: BestCheckpoint) -> None:
    folder.replace(FILE, json.dumps(asdict(replace(best, path=split_path(best.path)[1]))).encode())
