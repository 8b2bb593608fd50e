"""Saves and restores a synchronous run: rank 0 has the model directory, every rank writes and reads its own buckets.

The format is the same as that of other checkpoints: any number of ranks, parameter servers or one process can read it.
Rank 0 locks the directory and writes dense weights and manifest, while the other ranks serve its requests for their
rows over the saving connection, in the background of training. At the end rank 0 reports the outcome, and a failure on
any rank fails the save on all.
"""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from monolith import collective
from monolith.checkpoint import CLEAR_NN, PendingSave, SavedCheckpoint, Saver
from monolith.checkpoint.restore import (
    LoadedCheckpoint,
    Prepared,
    is_left_out_already,
    record_left_out,
    require_readable,
    restore_all,
    restore_without_dense,
    without_leave_out,
)
from monolith.collective import Call, LockStep
from monolith.deltalog.publish import POSITION_NAME, LogPosition
from monolith.errors import OpError
from monolith.files import join
from monolith.tables import BatchStamp
from monolith.train._rank_words import error_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from monolith.checkpoint import CheckpointWriteConfig, RestoreConfig, Staging, StateCut, TrainState
    from monolith.collective import Agreed
    from monolith.train.strategies.rank_steps import CollectiveFlag, RankSteps

__all__ = ["RankSaver"]

P = TypeVar("P", Prepared, LoadedCheckpoint)

_OUTCOME = "end of a save"


class RankSaver(Saver):
    """The checkpoints of a synchronous run. The training threads of all ranks call it at the same step.

    Args:
        model_dir: The same on all ranks, on a file system that all of them see.
        part: The run.
        options: The fields of `SaverConfig`, by name.
    """

    def __init__(self, model_dir: str, part: RankSteps, **options: Any) -> None:
        super().__init__(model_dir, **options)
        self._part = part
        self._words = part.words
        self._saving = LockStep(collective.saving_line())
        self._is_begun = False
        # A save in the background counts as done at the same step everywhere.
        self._writing = part.add_wish(lambda _: self._pending is not None and not self._pending.is_written)

    def beside(self, name: str, **options: Any) -> Saver:
        """Returns a saver for other checkpoints of the run, in a folder of this name inside this saver's directory."""
        return RankSaver(join(self.model_dir, name), self._part, **options)

    @property
    def _writes_dense(self) -> bool:
        return self._part.is_first

    # Saving

    def begin(self, *, preparing: TrainState | None = None) -> None:
        """Locks the directory on rank 0; an error is raised on all ranks."""
        if self._is_begun and not self._save_failed and preparing is None:
            return
        began = super().begin
        self._words.broadcast("taking the model directory", lambda: began(preparing=preparing))
        self._is_begun, self._save_failed = True, False

    def create_state_file(self) -> None:
        """Creates the state file, on rank 0."""
        created = super().create_state_file
        self._words.broadcast("the state file", created)

    def _take_cut(self, state: TrainState, *, staging: Staging | None) -> StateCut:
        cut = self._own_cut(state, staging if self._writes_dense else None)
        own = [[_plain(each) for each in cut.applied.values()], cut.positions.get(POSITION_NAME, b"").decode()]
        try:
            told = self._words.gather("the last batches", own)
        except BaseException:
            cut.release()
            raise
        stamps, logs = zip(*told, strict=True)
        # For servers, rank 0 has all log positions; for rows of ranks, each rank has its own.
        positions = _with_log(cut.positions, logs) if self._part.shares_rows else cut.positions
        return replace(cut, applied=_newest(list(stamps)), positions=positions)

    def _own_cut(self, state: TrainState, staging: Staging | None) -> StateCut:
        return super()._take_cut(state, staging=staging)

    def _order(self, state: TrainState, *, in_background: bool) -> CheckpointWriteConfig:
        if not self._part.is_first and self._claim is None:
            self._claim = _NO_CLAIM  # type: ignore[assignment]  # rank 0 has it
        return super()._order(state, in_background=in_background)

    def _write(self, cut: StateCut, order: CheckpointWriteConfig) -> SavedCheckpoint:
        if not self._part.is_first:
            return self._follow_write()
        try:
            saved = super()._write(cut, order)
        except BaseException as error:
            self._tell({"error": [type(error).__name__, error.message if isinstance(error, OpError) else str(error)]})
            raise
        self._tell({"path": saved.path, "step": saved.step, "generation": saved.generation})
        return saved

    def _tell(self, outcome: Mapping[str, Any]) -> None:
        try:
            self._saving.run(Call(_OUTCOME, arguments=json.dumps(outcome).encode()), work=lambda _: None)
        except OpError:
            if "error" not in outcome:
                raise

    def _follow_write(self) -> SavedCheckpoint:
        """Serves rank 0's requests for the rows of this rank, until rank 0 reports the outcome of the save."""
        heard: list[dict[str, Any]] = []

        def end(_: Agreed, arguments: bytes) -> None:
            heard.append(json.loads(arguments))

        handlers: dict[str, Callable[[Agreed, bytes], object]] = {_OUTCOME: end}
        for store in self._part.stores:
            handlers |= store.saving_followers()
        self._save_failed = True
        while not heard:
            following = self._saving.follow(handlers)  # raises once the line has ended
            with suppress(OpError):  # rank 0 handles an error that all ranks raise, and still reports the outcome
                following.result()
        outcome = heard[0]
        if "error" in outcome:
            raise error_of(*outcome["error"], rank=0)
        self._save_failed = False
        self._last_saved = SavedCheckpoint(**outcome)
        return self._last_saved

    def _let_go(self) -> None:
        self._is_begun = False
        super()._let_go()

    def _new_pending(self, future: Future[SavedCheckpoint]) -> PendingSave:
        return _RankPending(future, self._writing)

    # Restoring

    def _candidates(self) -> list[str]:
        look = super()._candidates
        found: list[str] = self._words.broadcast("the checkpoints to resume from", look)
        return found

    def _restore(self, path: str, state: TrainState, options: RestoreConfig | None) -> SavedCheckpoint:
        settings = self._wanted.restoring if options is None else options
        is_applied = self._words.broadcast("leave_out", lambda: is_left_out_already(self._folder, path, settings))
        options = without_leave_out(path, settings) if is_applied else settings
        clears = options.clear_nn and not self._words.broadcast("clear_nn", lambda: self._folder.exists(CLEAR_NN))
        self._require_readable(path, state, None if clears else options)
        if clears:
            restored = restore_without_dense(path, state, options, parts=self._parts(state), checked=self._all_or_none)
            self._words.broadcast("clear_nn", lambda: self._folder.replace(CLEAR_NN, b"clear_nn"))
            return restored
        restored = restore_all(path, state, options, self._parts(state), checked=self._all_or_none)
        self._words.broadcast("leave_out", lambda: record_left_out(self._folder, path, options))
        return restored

    def _require_readable(self, path: str, state: TrainState, options: RestoreConfig | None) -> None:
        """Refuses, on all ranks alike, what one of them cannot read; before they read tables, which they do together.

        Raises:
            OpError: names the rank and the file.
        """
        failed: list[str] | None = None
        try:
            require_readable(path, state, options)
        except OpError as error:
            failed = [type(error).__name__, error.message]
        answers = self._words.gather("reading a checkpoint", failed)
        rank = next((rank for rank, each in enumerate(answers) if each is not None), None)
        if rank is not None:
            raise error_of(*answers[rank], rank=rank)

    def _all_or_none(self, prepare: Callable[[], P]) -> P:
        """Returns what every rank has read and checked; raises the error of any rank on all."""
        made: list[P] = []
        try:
            self._words.run_on_all("restoring", lambda: made.append(prepare()))
        except BaseException:
            for each in made:
                each.close()
            raise
        return made[0]


class _RankPending(PendingSave):
    """A save that is done when it is on all ranks, as all of them knew at the last step."""

    def __init__(self, future: Future[SavedCheckpoint], writing: CollectiveFlag) -> None:
        super().__init__(future)
        self._writing = writing
        writing.is_granted = True  # until the next step changes it

    @property
    def done(self) -> bool:
        """Returns whether all ranks are done, as of the last step, so that ranks agree."""
        return self.is_written and not self._writing.is_granted


class _NoClaim:
    generation = 0


_NO_CLAIM = _NoClaim()


def _plain(stamp: BatchStamp) -> list[Any]:
    return [stamp.worker, stamp.seq, base64.b64encode(stamp.position).decode(), stamp.event_time_ms]


def _with_log(positions: Mapping[str, bytes], logs: Sequence[str]) -> dict[str, bytes]:
    """Returns this rank's positions, with that of the delta log of all ranks if each has reported its part."""
    others = {name: position for name, position in positions.items() if name != POSITION_NAME}
    found = LogPosition.of_all(each.encode() for each in logs)
    return others if found is None else {**others, POSITION_NAME: found.to_bytes()}


def _newest(of_ranks: list[list[list[Any]]]) -> dict[int, BatchStamp]:
    """Returns worker -> its last batch, as reported by the rank that trained it."""
    found: dict[int, BatchStamp] = {}
    for worker, seq, position, event_time_ms in (each for stamps in of_ranks for each in stamps):
        if worker not in found or found[worker].seq < seq:
            found[worker] = BatchStamp(
                worker=worker, seq=seq, position=base64.b64decode(position), event_time_ms=event_time_ms
            )
    return found
