"""`Predictor`: answers requests from an export, and follows the delta log of the run that trains it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from monolith.clock import Clock, SystemClock
from monolith.closing import Closing
from monolith.deltalog import DeltaLog, Lag
from monolith.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from monolith.export import DEFAULT_SIGNATURE, Signature
from monolith.serving.export_versions import ExportVersions, FoundExport
from monolith.serving.loaded_model import LiveModel, LiveRows, LoadedModel, WithWeights, has_base_of_all
from monolith.serving.served_model import ModelVersion, Prediction, ServedModel, lag_reason
from monolith.serving.version_watch import VersionWatch
from monolith.tables import LocalStore, ServingRows, TableConfig

if TYPE_CHECKING:
    from torch import Tensor

    from monolith.deltalog.follow import Staleness
    from monolith.serving.promotion.gate import PromotionGate


class Predictor(ServedModel, Closing):
    """A served model. Thread-safe. Close it, or use it as a context manager.

    A call computes on the calling thread and on the intra-op threads of torch (`torch.set_num_threads`).

    Args:
        path: An export, or a folder with versions of one: then newer versions are served once they are complete,
            without a failing call.
        follow: The delta log of the run that trains the model: its path or URL, or a `DeltaLog`; None: the rows and
            weights stay those of the export.
        gate: Gate that newer versions, and dense weights of the log, must pass before they are served; None: no gate.
        beside: Predictors of other versions of the same folder, whose rows are shared if they are the same.
        engine: Makes the store of the rows from the configs of its tables; None: a `LocalStore`.
        trial: Whether a child process loads and runs the graphs of the export first, as it does with newer versions.
        clock: Measures waits.

    Raises:
        NotFoundError: there is no export.
        OpError: the export is damaged, or cannot be used by this build or this version of torch.

    >>> import tempfile
    >>> from monolith.serving import Predictor
    >>> from monolith.testing import ExampleTask
    >>> from monolith.train import Trainer
    >>> trainer = Trainer(ExampleTask())
    >>> _ = trainer.train(steps=2)
    >>> batch = trainer.task.input_fn("train").make(0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = trainer.export(folder, example=batch)
    ...     with Predictor(folder) as predictor:
    ...         predictor.predict({"user": [7, 8], "item": [5, 5]}).outputs["predictions"].shape
    torch.Size([2])
    """

    def __init__(
        self,
        path: str,
        *,
        follow: DeltaLog | str | None = None,
        gate: PromotionGate | None = None,
        beside: Sequence[Predictor] = (),
        engine: Callable[[Mapping[str, TableConfig]], ServingRows] | None = None,
        trial: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._follow = follow
        self._gate = gate
        self._engine = engine or LocalStore
        self._versions = ExportVersions(path)
        self._watch = VersionWatch("predictor", next_version=self._newer, activate=self._activate)
        self._live: LiveModel = self._load([other._live.rows for other in beside], trial=trial)  # noqa: SLF001 - others of its kind
        self._live.rows.serve(self._live)
        if not self._versions.is_fixed:
            self._watch.start()

    # Predictions

    def predict(self, inputs: Mapping[str, Any] | bytes, signature: str = DEFAULT_SIGNATURE) -> Prediction:
        """Predicts examples.

        Args:
            inputs: Columns by name: a `Batch`, or tensors, arrays, lists or `Ragged`; a column with one row applies to
                all examples. Or encoded samples: ``{"instances": [...]}``, ``{"examples": [...]}`` or
                ``{"example_batch": [...]}`` with the bytes of such messages, or the bytes of one ``ExampleBatch``.
            signature: Name of the signature.

        Raises:
            InvalidArgumentError: inputs do not fit the signature; the message names them.
            NotFoundError: the model does not have this signature.
            UnavailableError: the predictor is closed.
        """
        live = self._live
        if self._watch.stopped.is_set():
            raise UnavailableError("predictor: it is closed")
        model = live.model.signature(signature)
        # In this order: rows are read last, so that none is older than the version, nor than the weights need.
        weights, dense = live.current
        version = live.version._replace(dense=dense)
        answer = model.answer(inputs, weights)
        return Prediction(answer.outputs, version, answer.num_ids, answer.num_found)

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._live.model.export.manifest.name

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """Signatures by name."""
        return self._live.model.signatures

    @property
    def version(self) -> ModelVersion:
        """Minimum version of the next answer."""
        return self._live.version

    # Status

    @property
    def why_not_ready(self) -> str | None:
        """Reason as a sentence; None: ready. Requests are answered in any case."""
        if self._watch.stopped.is_set():
            return "it is closed"
        behind = lag_reason(self._live.rows.follower)
        if behind is None and self._live.awaits_gate:
            return "the gate judges the dense weights of the delta log"
        return behind

    @property
    def is_catching_up(self) -> bool:
        """Whether increments of the log are still being applied; False if the log cannot be followed."""
        follower = self._live.rows.follower
        if follower is None or follower.error is not None or follower.away is not None:
            return False
        return not follower.is_caught_up or self._live.awaits_gate

    def wait_ready(self, timeout_seconds: float = 60.0) -> None:
        """Waits until it is ready.

        Raises:
            DeadlineExceededError: it did not become ready in time; the message gives the reason.
        """
        deadline = self._clock.monotonic() + timeout_seconds
        while (reason := self.why_not_ready) is not None:
            if self._clock.monotonic() >= deadline:
                raise DeadlineExceededError(f"predictor: not ready within {timeout_seconds} s: {reason}")
            self._watch.stopped.wait(0.01)

    @property
    def problem(self) -> str | None:
        """Why a newer export, or newer dense weights, are not served; None: no problem."""
        gate = self._live.gate
        return self._watch.problem or (None if gate is None else gate.problem)

    @property
    def follows(self) -> bool:
        """Whether its rows and weights follow a delta log."""
        return self._live.rows.follower is not None

    @property
    def lag(self) -> Lag | None:
        """Lag of the follower; None: no log is followed."""
        follower = self._live.rows.follower
        return None if follower is None else follower.lag

    @property
    def staleness(self) -> Staleness | None:
        """Seconds from events to their rows here; None: no log is followed, or there was no event yet."""
        follower = self._live.rows.follower
        return None if follower is None else follower.staleness

    @property
    def num_rows(self) -> int:
        """Number of rows of all tables."""
        return sum(store.stats().rows for store in self._live.rows.stores.values())

    @property
    def memory_bytes(self) -> int:
        """Memory of the tables."""
        return sum(store.stats().memory_bytes for store in self._live.rows.stores.values())

    def close(self) -> None:
        """Stops following; running calls are completed. Idempotent."""
        self._watch.close()
        self._live.rows.leave(self._live)

    # Versions

    def _load(self, beside: Sequence[LiveRows], *, trial: bool) -> LiveModel:
        """Loads the newest version; shares loaded rows if they are the same."""
        newest = self._versions.newest(trial=trial, is_stopped=self._watch.stopped.is_set)
        live = self._live_model(newest, beside)
        newest.export.folder.release()
        return live

    def _live_model(self, newest: FoundExport, beside: Sequence[LiveRows]) -> LiveModel:
        for rows in beside:
            if self._would_have(rows, newest):
                return LiveModel(LoadedModel(newest.export, rows.stores), rows, self._gate)
        stores = newest.with_rows.new_stores(self._engine)
        log = DeltaLog(self._follow) if isinstance(self._follow, str) else self._follow
        version = newest.with_rows.manifest.version
        if log is not None and has_base_of_all(log, stores):
            rows = LiveRows(stores, log, self._clock, export=version)
            live = LiveModel(LoadedModel(newest.export, stores), rows, self._gate)
            if rows.begin(live):
                return live
            rows.leave(live)
            stores = newest.with_rows.new_stores(self._engine)  # the base of the log is incomplete
        newest.with_rows.load_rows(stores)
        rows = LiveRows(stores, log, self._clock, export=version)
        return LiveModel(LoadedModel(newest.export, stores), rows, self._gate)

    def _would_have(self, rows: LiveRows, newest: FoundExport) -> bool:
        """Returns whether these rows are the ones that an export would load.

        With a log this holds for an export with only weights. A complete export loads its own, since its tables may
        differ.
        """
        if self._follow is None:
            return rows.follower is None and rows.export == newest.with_rows.manifest.version
        return rows.follower is not None and newest.export is not newest.with_rows

    def _newer(self) -> int | None:
        newest = self._versions.newest_number()
        return newest if newest > self._live.model.export.manifest.version else None

    def _activate(self, number: int) -> None:
        """Serves the newest version once it is up to date with the log and has passed the gate.

        Raises:
            FailedPreconditionError: it did not pass, or is not newer.
        """
        old = self._live
        new = self._load([old.rows], trial=True)
        if new.version.export <= old.version.export:
            new.rows.leave(new)
            raise FailedPreconditionError(
                f"the folder of version {number} has another name than its version, {new.version.export}; rename it"
            )
        new.rows.serve(new)
        follower = new.rows.follower
        is_shared = new.rows is old.rows
        while new.awaits_gate or (follower is not None and not is_shared and not follower.is_caught_up):
            if self._watch.stopped.wait(0.05):
                new.rows.leave(new)
                return
        if self._gate is not None:
            verdict = self._gate.judge(
                WithWeights(new, new.current[0]), kind="export", against=WithWeights(old, old.current[0])
            )
            if verdict.refused is not None:
                new.rows.leave(new)
                raise FailedPreconditionError(f"version {new.version.export} did not pass the gate: {verdict.refused}")
        if self._watch.is_given_up:
            new.rows.leave(new)
            return
        self._live = new
        old.rows.leave(old)


@contextmanager
def import_saved_model(
    path: str, input_name: str = "instances", output_name: str | None = None, signature: str | None = None
) -> Iterator[Callable[[Any], Tensor]]:
    """Yields a function that predicts with an export: the newest version below a path.

    Args:
        path: The export, or the folder of all versions.
        input_name: Name of the argument of the function, if it is not a mapping: ``instances``, ``examples`` or
            ``example_batch`` as bytes, or the only column of the signature.
        output_name: Name of the output to return; None: the only output.
        signature: Name of the signature; None: ``serving_default``, else the only one.

    Raises:
        NotFoundError: there is no export, signature or output of that name.
        InvalidArgumentError: there are several outputs, and none is named.
    """
    with Predictor(path) as predictor:
        name = _signature(predictor.signatures, signature, path)
        output = _output(predictor.signatures[name], output_name, f"export '{path}', signature {name!r}")

        def call(inputs: Any) -> Tensor:
            columns = inputs if isinstance(inputs, Mapping) else {input_name: inputs}
            return predictor.predict(columns, name).outputs[output]

        yield call


def _signature(signatures: Mapping[str, Signature], name: str | None, path: str) -> str:
    is_default = DEFAULT_SIGNATURE in signatures or len(signatures) > 1
    chosen = name or (DEFAULT_SIGNATURE if is_default else next(iter(signatures)))
    if chosen not in signatures:
        known = ", ".join(sorted(signatures))
        raise NotFoundError(f"export '{path}': there is no signature {chosen!r}, it has {known}")
    return chosen


def _output(signature: Signature, name: str | None, subject: str) -> str:
    there = ", ".join(sorted(signature.outputs))
    if name is None and len(signature.outputs) > 1:
        raise InvalidArgumentError(f"{subject}: it answers with {there}; give one as output_name")
    chosen = next(iter(signature.outputs)) if name is None else name
    if chosen not in signature.outputs:
        raise NotFoundError(f"{subject}: there is no output {chosen!r}, it has {there}")
    return chosen
