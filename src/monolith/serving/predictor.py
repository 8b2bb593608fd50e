"""`Predictor`: answers requests from an export, and follows the delta log of the run that made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from monolith.clock import SystemClock
from monolith.deltalog import DeltaLog
from monolith.errors import DeadlineExceededError, FailedPreconditionError, UnavailableError
from monolith.export.signature import DEFAULT_SIGNATURE
from monolith.serving.export_versions import ExportVersions, FoundExport
from monolith.serving.live_model import LiveModel, LiveRows, has_base_of_all
from monolith.serving.loaded_model import LoadedModel
from monolith.serving.log_readiness import why_behind
from monolith.serving.prediction import Prediction
from monolith.serving.promotion.dense_gate import WithWeights
from monolith.serving.version_watch import VersionWatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monolith.clock import Clock
    from monolith.deltalog import Lag
    from monolith.export.signature import Signature
    from monolith.online.follower import Staleness
    from monolith.serving.prediction import ModelVersion
    from monolith.serving.promotion.gate import Gate

__all__ = ["Predictor"]


class Predictor:
    """A model that answers. Any thread may call it. A context manager, or to be closed.

    A call computes on its own thread, and with as many beside it as torch is set to there: `torch.set_num_threads`.

    Args:
        path: An export, or a folder with versions of one: then newer versions take over when they are whole, without a
            call that fails.
        follow: The delta log of the run that trains the model: its path or URL, or a `DeltaLog`; None: the rows and
            weights stay those of the export.
        gate: What newer versions, and dense weights of the log, must pass before they are served; None: nothing.
        beside: Predictors of other versions of the same folder, whose rows are used where they are its own.
        trial: Whether a child process loads and runs the graphs of the export first, as it does with newer versions.
        clock: Measures waits.

    Raises:
        NotFoundError: there is no export.
        OpError: it is damaged, or cannot be used by this build or this torch; says why.

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
        gate: Gate | None = None,
        beside: Sequence[Predictor] = (),
        trial: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._follow = follow
        self._gate = gate
        self._versions = ExportVersions(path)
        self._watch = VersionWatch("predictor", wanted=self._newer, take_up=self._take_up)
        self._live: LiveModel = self._load([other._live.rows for other in beside], trial=trial)  # noqa: SLF001 - others of its kind
        self._live.rows.serve(self._live)
        if not self._versions.is_fixed:
            self._watch.start()

    # Asking

    def predict(self, inputs: Mapping[str, Any] | bytes, signature: str = DEFAULT_SIGNATURE) -> Prediction:
        """The predictions for some examples.

        Args:
            inputs: Columns by name: a `Batch`, or tensors, arrays, lists or `Ragged`; a column of one example stands
                for all. Or encoded samples: ``{"instances": [...]}``, ``{"examples": [...]}`` or
                ``{"example_batch": [...]}`` with the bytes of such messages, or the bytes of one ``ExampleBatch``.
            signature: What is asked.

        Raises:
            InvalidArgumentError: inputs that do not fit the signature; says which.
            NotFoundError: a signature that the model does not have.
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
        """Of the model."""
        return self._live.model.export.manifest.name

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """What it can be asked."""
        return self._live.model.signatures

    @property
    def version(self) -> ModelVersion:
        """What the next answer would be made with, at least."""
        return self._live.version

    # How it is

    @property
    def is_ready(self) -> bool:
        """Whether it has what the log has, but for a small lag."""
        return self.why_not_ready is None

    @property
    def why_not_ready(self) -> str | None:
        """A sentence; None: it is ready. It answers in any case, from what it has."""
        if self._watch.stopped.is_set():
            return "it is closed"
        behind = why_behind(self._live.rows.follower)
        if behind is None and self._live.awaits_gate:
            return "the gate judges the dense weights of the delta log"
        return behind

    @property
    def is_catching_up(self) -> bool:
        """Whether what the log has is still on its way here; not where the log cannot be followed."""
        follower = self._live.rows.follower
        if follower is None or follower.error is not None or follower.away is not None:
            return False
        return not follower.is_caught_up or self._live.awaits_gate

    def wait_ready(self, timeout_seconds: float = 60.0) -> None:
        """Returns when it is ready.

        Raises:
            DeadlineExceededError: says why it is not.
        """
        deadline = self._clock.monotonic() + timeout_seconds
        while (reason := self.why_not_ready) is not None:
            if self._clock.monotonic() >= deadline:
                raise DeadlineExceededError(f"predictor: not ready within {timeout_seconds} s: {reason}")
            self._watch.stopped.wait(0.01)

    @property
    def problem(self) -> str | None:
        """Why a newer export, or newer dense weights, are not served; None: there are none, or they are."""
        gate = self._live.gate
        return self._watch.problem or (None if gate is None else gate.problem)

    @property
    def follows(self) -> bool:
        """Whether its rows and weights move with a delta log."""
        return self._live.rows.follower is not None

    @property
    def lag(self) -> Lag | None:
        """How far it is behind the log; None: it follows none."""
        follower = self._live.rows.follower
        return None if follower is None else follower.lag

    @property
    def staleness(self) -> Staleness | None:
        """Seconds from events to their rows here; None: no log is followed, or there was no event yet."""
        follower = self._live.rows.follower
        return None if follower is None else follower.staleness

    @property
    def num_rows(self) -> int:
        """Rows of all tables."""
        return sum(store.stats().rows for store in self._live.rows.stores.values())

    @property
    def memory_bytes(self) -> int:
        """What the tables take."""
        return sum(store.stats().memory_bytes for store in self._live.rows.stores.values())

    def close(self) -> None:
        """Ends following; calls that run are answered. Again: does nothing."""
        self._watch.close()
        self._live.rows.leave(self._live)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Versions

    def _load(self, beside: Sequence[LiveRows], *, trial: bool) -> LiveModel:
        """The newest version, with rows that are there already where they are its own."""
        found = self._versions.newest(trial=trial, is_stopped=self._watch.stopped.is_set)
        live = self._live_model(found, beside)
        found.export.folder.release()
        return live

    def _live_model(self, found: FoundExport, beside: Sequence[LiveRows]) -> LiveModel:
        for rows in beside:
            if self._would_have(rows, found):
                return LiveModel(LoadedModel(found.export, rows.stores), rows, self._gate)
        stores = found.with_rows.new_stores()
        log = DeltaLog(self._follow) if isinstance(self._follow, str) else self._follow
        version = found.with_rows.manifest.version
        if log is not None and has_base_of_all(log, stores):
            rows = LiveRows(stores, log, self._clock, export=version)
            live = LiveModel(LoadedModel(found.export, stores), rows, self._gate)
            if rows.begin(live):
                return live
            rows.leave(live)
            stores = found.with_rows.new_stores()  # the log has less than it says
        found.with_rows.load_rows(stores)
        rows = LiveRows(stores, log, self._clock, export=version)
        return LiveModel(LoadedModel(found.export, stores), rows, self._gate)

    def _would_have(self, rows: LiveRows, found: FoundExport) -> bool:
        """Whether these are the rows that an export would be loaded with.

        With a log they are for one that has weights alone. A whole one begins anew, as its tables may be others.
        """
        if self._follow is None:
            return rows.follower is None and rows.export == found.with_rows.manifest.version
        return rows.follower is not None and found.export is not found.with_rows

    def _newer(self) -> int | None:
        newest = self._versions.newest_number()
        return newest if newest > self._live.model.export.manifest.version else None

    def _take_up(self, number: int) -> None:
        """Answers from the newest version once it has what the log has, and has passed the gate.

        Raises:
            FailedPreconditionError: it did not pass, or is no newer one.
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
