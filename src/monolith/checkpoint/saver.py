"""Saves a training run to a model directory and restores it."""

from __future__ import annotations

import logging
import threading
import weakref
from concurrent.futures import Future
from typing import TYPE_CHECKING, Literal, Self, overload

from monolith.checkpoint._descriptions import count_rows, info_name, model_meta
from monolith.checkpoint.best import BEST, read_best
from monolith.checkpoint.catalog import Catalog, SavedCheckpoint, prefix_of, require_path
from monolith.checkpoint.cut import StateCut, encode_state, take_cut
from monolith.checkpoint.model_dir_lock import GenerationClaim, ModelDirLock
from monolith.checkpoint.options import SaverConfig
from monolith.checkpoint.restore.adapting import ALL_PARTS, Parts
from monolith.checkpoint.restore.restoring import restore_all, restore_without_dense
from monolith.checkpoint.restore.rules import is_left_out_already, record_left_out, without_leave_out
from monolith.checkpoint.retention import CheckpointRecords, Retention
from monolith.checkpoint.snapshots import newest_of_ranks
from monolith.checkpoint.staging import Staging
from monolith.checkpoint.writing import CheckpointWriteConfig, remove_torn_saves, write_checkpoint
from monolith.config import keywords_of
from monolith.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    UnavailableError,
)
from monolith.files import StoragePath, local_path, open_storage
from monolith.tables.snapshot import end_of_save

if TYPE_CHECKING:
    from monolith.checkpoint.manifest import Manifest
    from monolith.checkpoint.options import RestoreConfig
    from monolith.checkpoint.train_state import TrainState
    from monolith.files import Storage


logger = logging.getLogger(__name__)

CLEAR_NN = "clear_nn"
"""Marker file: `clear_nn` was applied already."""


class Saver:
    """The checkpoints of one model directory. The thread that trains calls it.

    The first save locks the directory and opens a new generation; `close` releases the lock. A reader needs no lock.

    Args:
        model_dir: A folder on this machine or any fsspec URL; made at the first save.
        options: The fields of `SaverConfig`, by name.

    >>> import tempfile, torch
    >>> from monolith.checkpoint import Saver, TrainState
    >>> state = TrainState(model=torch.nn.Linear(2, 1), global_step=7)
    >>> with tempfile.TemporaryDirectory() as model_dir, Saver(model_dir, max_to_keep=2) as saver:
    ...     saved = saver.save(state)
    ...     state.global_step = 8
    ...     restored = saver.restore(state)
    >>> saved.path.endswith("/model.ckpt-7"), restored == saved, state.global_step
    (True, True, 7)
    """

    @keywords_of(SaverConfig)
    def __init__(self, model_dir: StoragePath, options: SaverConfig) -> None:
        self._wanted = wanted = options
        if not wanted.basename or "/" in wanted.basename:
            raise InvalidArgumentError(f"Saver: basename must be the name of a file, got {wanted.basename!r}")
        self._folder: Storage = open_storage(model_dir)
        self._catalog = Catalog(self._folder, wanted.basename)
        retention = Retention(
            max_to_keep=wanted.max_to_keep, keep_every_hours=wanted.keep_every_hours, now=wanted.clock.now()
        )
        self._records = CheckpointRecords(self._folder, self._catalog, retention)
        self._staging = Staging()
        self._lock: ModelDirLock | None = None
        self._claim: GenerationClaim | None = None
        self._number = 0
        self._save_failed = False
        self._pending: PendingSave | None = None
        self._last_saved: SavedCheckpoint | None = None
        self._meta: tuple[weakref.ref[object], bytes] | None = None

    @property
    def model_dir(self) -> str:
        """The directory, absolute on this machine."""
        return self._catalog.root

    @property
    def dense_only(self) -> bool:
        """Whether its checkpoints omit the tables."""
        return self._wanted.dense_only

    @property
    def last_saved(self) -> SavedCheckpoint | None:
        """The last checkpoint committed by this object."""
        return self._last_saved

    @property
    def generation(self) -> int | None:
        """Generation of this run; None before `begin`."""
        return None if self._claim is None else self._claim.generation

    @property
    def last_checkpoints(self) -> list[str]:
        """Full prefixes of the checkpoints that retention counts, oldest first; includes exempt ones."""
        return self._records.paths

    # Saving

    def begin(self, *, preparing: TrainState | None = None) -> None:
        """Claims the directory: locks it, opens a generation, removes files of killed saves. `save` calls it if needed.

        Args:
            preparing: A state for which staging memory is allocated now, so that its first background save stalls no
                longer than the next ones.

        Raises:
            UnavailableError: another process has the directory; names it.
            InvalidArgumentError, PermissionDeniedError: the directory cannot be made or written to.
        """
        if self._claim is None:
            self._folder.make()
            try:
                self._lock = ModelDirLock(self._folder.path)
                self._claim = GenerationClaim(self._folder, above=self._highest_generation())
                self._take_stock()
            except BaseException:
                self._let_go()
                raise
        elif self._save_failed:
            self._take_stock()
        if preparing is not None:
            self._staging.prepare(encode_state(preparing)[1])

    @overload
    def save(self, state: TrainState, *, background: Literal[False]) -> SavedCheckpoint: ...
    @overload
    def save(self, state: TrainState, *, background: Literal[True]) -> PendingSave: ...
    @overload
    def save(self, state: TrainState, *, background: bool | None = None) -> SavedCheckpoint | PendingSave: ...
    def save(self, state: TrainState, *, background: bool | None = None) -> SavedCheckpoint | PendingSave:
        """Saves the current state of a run. First waits for a pending save, and raises its error.

        Args:
            state: The run, between two steps.
            background: Write in a thread; the call returns when the cut was taken. None: the saver's option.

        Raises:
            OpError: the save failed; the directory holds what it held before and, if the failure came after the commit,
                the new checkpoint, too.
        """
        self.wait()
        in_background = self._wanted.background if background is None else background
        if self._wanted.skip_save:
            return self._skipped(state, in_background=in_background)
        self.begin()
        cut = self._take_cut(state, staging=self._staging if in_background else None)
        try:
            order = self._order(state, in_background=in_background)
        except BaseException:
            cut.release()
            raise
        if not in_background:
            return self._write(cut, order)
        return self._begin_writing(cut, order)

    def create_state_file(self) -> None:
        """Creates `monolith_checkpoint` if it is missing, so that other processes see that the directory is in use."""
        if not self._wanted.skip_save:
            self._records.create_state_file()

    def wait(self) -> None:
        """Waits for a pending save.

        Raises:
            OpError: the save failed; raised once.
        """
        pending = self._pending
        if pending is None:
            return
        try:
            pending.wait()
        finally:
            if pending.is_written:  # an interrupt ends the waiting, not the save
                self._pending = None

    def close(self) -> None:
        """Waits for a pending save, raises its error, and releases the directory."""
        try:
            self.wait()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self._claim = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Restoring

    def restore(
        self, state: TrainState, path: str | None = None, *, options: RestoreConfig | None = None
    ) -> SavedCheckpoint | None:
        """Restores a checkpoint into a run; an error leaves the run unchanged.

        First waits for a pending save; one that failed is logged.

        Args:
            state: A run made of the same parts as the one that was saved.
            path: A prefix, with or without its folder, or ``best``, which `keep_best` has named. None: the newest
                intact one; each one that is skipped, damaged or on a failing disk, is logged as a warning.
            options: What may differ between the two runs; None: the saver's option.

        Returns:
            The checkpoint restored; None if the directory has none.

        Raises:
            InvalidArgumentError: there is no checkpoint at `path`.
            DataLossError, NotFoundError: the checkpoint is damaged, or all are.
            UnavailableError: the checkpoint cannot be read, or none can; on a remote file system, which may recover, no
                older one is tried.
            FailedPreconditionError: the run is made of other parts.
        """
        try:
            self.wait()  # the newest checkpoint may be the one that is being written
        except OpError as error:
            logger.warning("a pending save failed; an older checkpoint is restored: %s", error)
        if path is not None:
            best = read_best(self._folder) if path == BEST else None
            return self._restore(require_path(self.model_dir, path if best is None else best.path), state, options)
        failed: dict[str, OpError] = {}
        # Listed again after each failure: a concurrent saver may have removed the chosen one, and saved a newer one.
        while (candidate := next((path for path in self._candidates() if path not in failed), None)) is not None:
            try:
                restored = self._restore(candidate, state, options)
            except (DataLossError, NotFoundError, UnavailableError) as error:
                if isinstance(error, UnavailableError) and local_path(candidate) is None:
                    raise
                logger.warning("checkpoint '%s' cannot be used, trying the one before it: %s", candidate, error)
                failed[candidate] = error
                continue
            if failed:
                logger.warning("checkpoint '%s' was restored instead of '%s'", candidate, next(iter(failed)))
            return restored
        if failed:
            raise next(iter(failed.values()))  # the error of the newest
        return None

    # Inside; some methods are for subclasses

    def _candidates(self) -> list[str]:
        """Returns the checkpoints to try, the best first."""
        return newest_of_ranks(self._folder, self._wanted.basename, self._catalog.newest_first())

    def _highest_generation(self) -> int:
        """Returns the generation above which a run begins its own."""
        return self._catalog.highest_generation()

    def _before_commit(self, claim: GenerationClaim) -> None:
        """Called when all files are written; an error abandons the checkpoint."""
        claim.require()

    def _after_commit(self) -> None:
        """Called when the checkpoint is committed, before older ones are deleted."""

    def _take_cut(self, state: TrainState, *, staging: Staging | None) -> StateCut:
        return take_cut(state, staging=staging, dense_only=self._wanted.dense_only)

    def _restore(self, path: str, state: TrainState, options: RestoreConfig | None) -> SavedCheckpoint:
        options = self._wanted.restoring if options is None else options
        if options.clear_nn and not self._folder.exists(CLEAR_NN):
            restored = restore_without_dense(path, state, options)
            self._folder.replace(CLEAR_NN, b"clear_nn")
            return restored
        if is_left_out_already(self._folder, path, options):
            options = without_leave_out(path, options)
        restored = restore_all(path, state, options, self._parts(state))
        record_left_out(self._folder, path, options)
        return restored

    def _parts(self, state: TrainState) -> Parts:  # noqa: ARG002 - for subclasses
        """Returns which parts of the state are not restored, and which owners of rows have lost theirs."""
        return ALL_PARTS

    def _order(self, state: TrainState, *, in_background: bool) -> CheckpointWriteConfig:
        if self._claim is None:
            raise FailedPreconditionError(f"Saver of '{self.model_dir}': it was closed")
        self._number += 1
        return CheckpointWriteConfig(
            prefix=prefix_of(self._wanted.basename, state.global_step, padded=self._wanted.pad_step_number),
            generation=self._claim.generation,
            number=self._number,
            created=self._wanted.clock.now(),
            dense_only=self._wanted.dense_only,
            meta=self._meta_of(state) if self._wanted.write_meta else None,
            threads=1 if in_background else None,
            rate_bytes_per_second=self._wanted.rate_bytes_per_second if in_background else None,
        )

    def _begin_writing(self, cut: StateCut, order: CheckpointWriteConfig) -> PendingSave:
        """Starts a background save; registers it first, so that a call after an interrupt waits for it."""
        future: Future[SavedCheckpoint] = Future()
        self._pending = pending = self._new_pending(future)

        def write() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(self._write(cut, order))
            except BaseException as error:  # noqa: BLE001 - `wait` raises it
                future.set_exception(error)

        try:
            threading.Thread(target=write, name="monolith-checkpoint").start()
        except BaseException:
            if future.cancel():  # an interrupt, or no thread could be started
                self._pending = None
                cut.release()
            raise
        return pending

    def _new_pending(self, future: Future[SavedCheckpoint]) -> PendingSave:
        return PendingSave(future)

    def _write(self, cut: StateCut, order: CheckpointWriteConfig) -> SavedCheckpoint:
        claim = self._claim
        if claim is None:
            cut.release()
            raise FailedPreconditionError(f"Saver of '{self.model_dir}': it was closed")
        path = f"{self.model_dir}/{order.prefix}"
        try:
            manifest = write_checkpoint(self._folder, cut, order, before_commit=lambda: self._before_commit(claim))
            self._last_saved = SavedCheckpoint(path=path, step=manifest.step, generation=manifest.generation)
            self._after_commit()
            self._records.record(path, manifest.created)
            for witness in cut.witnesses:
                witness.committed(path)
            self._write_info(manifest)
        except BaseException:
            self._save_failed = True
            raise
        return self._last_saved

    def _take_stock(self) -> None:
        """Scans the directory: at the beginning, and after a failed save, whose outcome is uncertain."""
        remove_torn_saves(self._folder)
        self._records.recover()
        self._save_failed = False

    def _write_info(self, manifest: Manifest) -> None:
        """Writes the rows of each slot; the checkpoint is committed already, so an error is logged as a warning."""
        if self._wanted.write_info and manifest.tables:
            try:
                self._folder.replace(info_name(manifest.step), count_rows(self._folder, manifest))
            except OpError as error:
                logger.warning("%s", error)

    def _skipped(self, state: TrainState, *, in_background: bool) -> SavedCheckpoint | PendingSave:
        prefix = prefix_of(self._wanted.basename, state.global_step, padded=self._wanted.pad_step_number)
        skipped = SavedCheckpoint(path=f"{self.model_dir}/{prefix}", step=state.global_step, generation=0)
        if not in_background:
            return skipped
        future: Future[SavedCheckpoint] = Future()
        future.set_result(skipped)
        return PendingSave(future)

    def _meta_of(self, state: TrainState) -> bytes:
        """Returns the description of a model, made once: its structure does not change while it trains."""
        if self._meta is None or self._meta[0]() is not (state if state.model is None else state.model):
            self._meta = (weakref.ref(state if state.model is None else state.model), model_meta(state))
        return self._meta[1]


class PendingSave:
    """A save that runs in a thread named ``monolith-checkpoint``. Thread-safe."""

    def __init__(self, future: Future[SavedCheckpoint]) -> None:
        self._future = future

    @property
    def done(self) -> bool:
        """Whether the save has completed or failed."""
        return self.is_written

    @property
    def is_written(self) -> bool:
        """Whether this process has written everything."""
        return self._future.done()

    def wait(self, timeout_seconds: float | None = None) -> SavedCheckpoint:
        """Waits for the commit.

        Raises:
            DeadlineExceededError: the save is still running; wait again.
            OpError: the save failed; see `Saver.save`.
        """
        return end_of_save(self._future, timeout_seconds)
