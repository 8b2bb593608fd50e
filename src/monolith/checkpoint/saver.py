"""Saves a training run to a model directory and restores it."""

from __future__ import annotations

import logging
import threading
import weakref
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from monolith.checkpoint.catalog import Catalog, SavedCheckpoint, prefix_of, require_path
from monolith.checkpoint.cut import Staging, StateCut, encode_state
from monolith.checkpoint.model_dir_lock import GenerationClaim, ModelDirLock
from monolith.checkpoint.options import SaverConfig
from monolith.checkpoint.restore.restoring import require_readable, restore_all, restore_without_dense
from monolith.checkpoint.restore.rules import is_left_out_already, record_left_out, without_leave_out
from monolith.checkpoint.retention import BEST, CheckpointRecords, Retention, read_best
from monolith.checkpoint.save_protocol import PendingSave, SaveProtocol
from monolith.checkpoint.state_files import get_monolith_checkpoint_state
from monolith.checkpoint.writing import (
    CheckpointWriteConfig,
    count_rows,
    info_name,
    model_meta,
    remove_torn_saves,
    write_checkpoint,
)
from monolith.config import keywords_of
from monolith.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    UnavailableError,
)
from monolith.files import StoragePath, join, local_path, open_storage

if TYPE_CHECKING:
    from monolith.checkpoint.manifest import Manifest
    from monolith.checkpoint.options import RestoreConfig
    from monolith.checkpoint.restore.adapting import Parts
    from monolith.checkpoint.train_state import TrainState
    from monolith.files import Storage


logger = logging.getLogger(__name__)

CLEAR_NN = "clear_nn"
"""Marker file: `clear_nn` was applied already."""


class Saver:
    """The checkpoints of one model directory. The thread that trains calls it.

    The first save locks the directory and opens a new generation; `close` releases the lock. A reader needs no lock.
    The processes of a run have a saver each; the `SaveProtocol` of their options determines which of them write what.

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
        self._options = options
        if not options.basename or "/" in options.basename:
            raise InvalidArgumentError(f"Saver: basename must be the name of a file, got {options.basename!r}")
        self.protocol = SaveProtocol() if options.protocol is None else options.protocol
        """How the processes of the run save together."""
        self.dense_only = options.dense_only
        """Whether its checkpoints omit the tables."""
        self._folder: Storage = open_storage(model_dir)
        self._catalog = Catalog(self._folder, options.basename)
        self.model_dir = self._catalog.root
        """The directory, absolute on this machine."""
        retention = Retention(
            max_to_keep=options.max_to_keep, keep_every_hours=options.keep_every_hours, now=options.clock.now()
        )
        self._records = CheckpointRecords(self._folder, self._catalog, retention)
        self._staging = Staging()
        self._lock: ModelDirLock | None = None
        self._claim: GenerationClaim | None = None
        self._is_begun = False
        self._number = 0
        self._save_failed = False
        self._pending: PendingSave | None = None
        self.last_saved: SavedCheckpoint | None = None
        """The last checkpoint committed by this object."""
        self._meta: tuple[weakref.ref[object], bytes] | None = None

    @property
    def generation(self) -> int | None:
        """Generation of this run; None before `begin`."""
        return None if self._claim is None else self._claim.generation

    @property
    def last_checkpoints(self) -> list[str]:
        """Full prefixes of the checkpoints that retention counts, oldest first; includes exempt ones."""
        return self._records.paths

    @property
    def exempt_checkpoint_paths(self) -> list[str]:
        """Checkpoints that retention neither counts nor deletes, as `monolith_checkpoint` lists them now."""
        state = get_monolith_checkpoint_state(self.model_dir, remove_invalid_path=True)
        return [] if state is None else list(state.exempt_model_checkpoint_paths)

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
        was_begun = self._is_begun
        if was_begun and not self._save_failed and preparing is None:
            return
        floor = 0 if was_begun else self.protocol.generation_floor(self._catalog)
        try:
            self.protocol.run_on_writers("taking the model directory", lambda: self._begin_here(floor, preparing))
        except BaseException:
            if not was_begun:
                self._let_go()
            raise
        self._is_begun, self._save_failed = True, False

    def _begin_here(self, floor: int, preparing: TrainState | None) -> None:
        if self._claim is None:
            self._folder.make()
            self._lock = ModelDirLock(self._folder.path)
            self._claim = GenerationClaim(self._folder, above=max(floor, self._catalog.highest_generation()))
            self._take_stock()
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
        in_background = self._options.background if background is None else background
        if self._options.skip_save:
            return self._skipped(state, in_background=in_background)
        self.begin()
        staging = self._staging if in_background else None
        cut = self.protocol.take_cut(state, staging=staging, dense_only=self._options.dense_only)
        try:
            order = self._order(state, in_background=in_background)
        except BaseException:
            cut.release()
            raise
        if not in_background:
            return self._write(cut, order, in_background=False)
        return self._begin_writing(cut, order)

    def create_state_file(self) -> None:
        """Creates `monolith_checkpoint` if it is missing, so that other processes see that the directory is in use."""
        if not self._options.skip_save:
            self.protocol.run_on_writers("the state file", self._records.create_state_file)

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
        self._is_begun = False
        self._claim = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def subfolder(self, name: str, **options: Any) -> Saver:
        """Returns a saver for other checkpoints of the run, in a folder of this name inside the directory.

        Args:
            name: Name of the folder.
            options: The fields of `SaverConfig`, by name.
        """
        return Saver(join(self.model_dir, name), protocol=self.protocol.subfolder(name), **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Restoring

    def source_of(self, model_dir: str) -> str:
        """Returns the directory from which this process copies checkpoints of another model directory."""
        return self.protocol.source_of(model_dir, self._options.basename)

    def setup_ps_initialized_state(self, state: TrainState) -> None:
        """Marks every device of `ps_monitor` as having state: it was restored, or made."""
        if self._options.ps_monitor is not None:
            self._options.ps_monitor.setup_ps_initialized_state(state)

    def restore(
        self,
        state: TrainState,
        path: str | None = None,
        *,
        options: RestoreConfig | None = None,
        parts: Parts | None = None,
    ) -> SavedCheckpoint | None:
        """Restores a checkpoint into a run; an error leaves the run unchanged.

        First waits for a pending save; one that failed is logged.

        Args:
            state: A run made of the same parts as the one that was saved.
            path: A prefix, with or without its folder, or ``best``, which `keep_best` has named. None: the newest
                intact one; each one that is skipped, damaged or on a failing disk, is logged as a warning.
            options: What may differ between the two runs; None: the saver's option.
            parts: The parts to restore; None: those that `ps_monitor` reports as lost, without one all.

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
            path = require_path(self.model_dir, self.protocol.own_path(path) if best is None else best.path)
            return self._restore(path, state, options, parts)
        failed: dict[str, OpError] = {}

        def next_candidate() -> str | None:
            return next((path for path in self.protocol.candidates(self._catalog) if path not in failed), None)

        # Listed again after each failure: a concurrent saver may have removed the chosen one, and saved a newer one.
        while (candidate := next_candidate()) is not None:
            try:
                restored = self._restore(candidate, state, options, parts)
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

    # Inside

    def _restore(
        self, path: str, state: TrainState, options: RestoreConfig | None, parts: Parts | None
    ) -> SavedCheckpoint:
        chosen = self._options.restoring if options is None else options
        return self.protocol.restore(lambda: self._restore_here(path, state, chosen, parts), state)

    def _restore_here(
        self, path: str, state: TrainState, options: RestoreConfig, parts: Parts | None
    ) -> SavedCheckpoint:
        protocol, folder = self.protocol, self._folder
        is_applied = protocol.run_on_first("leave_out", lambda: is_left_out_already(folder, path, options))
        applied = without_leave_out(path, options) if is_applied else options
        clears = options.clear_nn and not protocol.run_on_first("clear_nn", lambda: folder.exists(CLEAR_NN))

        def check() -> None:
            require_readable(path, state, None if clears else applied)

        if clears:
            restored = restore_without_dense(
                path,
                state,
                applied,
                parts=protocol.parts(state),
                checked=lambda prepare: protocol.prepare(prepare, check=check),
            )
            protocol.run_on_first("clear_nn", lambda: folder.replace(CLEAR_NN, b"clear_nn"))
            return restored
        restored = restore_all(
            path,
            state,
            applied,
            self._lost_parts(state) if parts is None else parts,
            checked=lambda prepare: protocol.prepare(prepare, check=check),
        )
        protocol.run_on_first("leave_out", lambda: record_left_out(folder, path, applied))
        return restored

    def _lost_parts(self, state: TrainState) -> Parts:
        monitor = self._options.ps_monitor
        return self.protocol.parts(state) if monitor is None else monitor.lost_parts(state)

    def _order(self, state: TrainState, *, in_background: bool) -> CheckpointWriteConfig:
        if not self._is_begun:
            raise FailedPreconditionError(f"Saver of '{self.model_dir}': it was closed")
        self._number += 1
        return CheckpointWriteConfig(
            prefix=prefix_of(self._options.basename, state.global_step, padded=self._options.pad_step_number),
            generation=self.generation or 0,
            number=self._number,
            created=self.protocol.run_on_first("the time of a checkpoint", self._options.clock.now),
            dense_only=self._options.dense_only,
            meta=self._meta_of(state) if self._options.write_meta else None,
            threads=1 if in_background else None,
            rate_bytes_per_second=self._options.rate_bytes_per_second if in_background else None,
        )

    def _begin_writing(self, cut: StateCut, order: CheckpointWriteConfig) -> PendingSave:
        """Starts a background save; registers it first, so that a call after an interrupt waits for it."""
        future: Future[SavedCheckpoint] = Future()
        self._pending = pending = self.protocol.pending(future)

        def write() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(self._write(cut, order, in_background=True))
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

    def _write(self, cut: StateCut, order: CheckpointWriteConfig, *, in_background: bool) -> SavedCheckpoint:
        try:
            saved = self.protocol.write(lambda: self._write_here(cut, order), in_background=in_background)
        except BaseException:
            self._save_failed = True
            raise
        self.last_saved = saved
        return saved

    def _write_here(self, cut: StateCut, order: CheckpointWriteConfig) -> SavedCheckpoint:
        claim = self._claim
        if claim is None:
            cut.release()
            raise FailedPreconditionError(f"Saver of '{self.model_dir}': it was closed")
        path = f"{self.model_dir}/{order.prefix}"

        def before_commit() -> None:
            claim.require()
            self.protocol.agree()

        manifest = write_checkpoint(self._folder, cut, order, before_commit=before_commit)
        self.last_saved = saved = SavedCheckpoint(path=path, step=manifest.step, generation=manifest.generation)
        self.protocol.agree()
        self._records.record(path, manifest.created)
        for witness in cut.witnesses:
            witness.committed(path)
        self._write_info(manifest)
        return saved

    def _take_stock(self) -> None:
        """Scans the directory: at the beginning, and after a failed save, whose outcome is uncertain."""
        remove_torn_saves(self._folder)
        self._records.recover()
        self._save_failed = False

    def _write_info(self, manifest: Manifest) -> None:
        """Writes the rows of each slot; the checkpoint is committed already, so an error is logged as a warning."""
        if self._options.write_info and manifest.tables:
            try:
                self._folder.replace(info_name(manifest.step), count_rows(self._folder, manifest))
            except OpError as error:
                logger.warning("%s", error)

    def _skipped(self, state: TrainState, *, in_background: bool) -> SavedCheckpoint | PendingSave:
        prefix = prefix_of(self._options.basename, state.global_step, padded=self._options.pad_step_number)
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
