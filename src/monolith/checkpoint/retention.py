"""Decides which checkpoints to keep, deletes the others, and keeps the text files of a model directory up to date."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monolith.checkpoint.best import read_best
from monolith.checkpoint.catalog import Catalog, read_manifest
from monolith.checkpoint.protos.checkpoint_state_pb2 import CheckpointState, MonolithCheckpointState
from monolith.checkpoint.state_files import (
    MONOLITH_CHECKPOINT,
    get_monolith_checkpoint_state,
    split_path,
    write_checkpoint_state,
    write_monolith_checkpoint_state,
)
from monolith.checkpoint.writing import remove_prefix
from monolith.errors import InvalidArgumentError, OpError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from monolith.files import Storage


_HOUR = 3600.0


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
