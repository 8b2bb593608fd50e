"""`TaskModel`: serves a task with its code, for a `model_fn` that cannot be exported.

Each checkpoint is a `TaskSession`, which predicts in a thread of its own.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import torch

from monolith.checkpoint import get_checkpoint_state
from monolith.closing import Closing
from monolith.data import Batch, TextColumn
from monolith.errors import InvalidArgumentError, NotFoundError, UnavailableError
from monolith.export import (
    DEFAULT_SIGNATURE,
    InputSpec,
    OutputSpec,
    Signature,
    WatchedBatch,
    columns_of,
    named_predictions,
)
from monolith.nn.embeddings import BatchContext
from monolith.serving.loaded_model import OWN_WEIGHTS
from monolith.serving.request import Column, encoded_samples, for_all, typed_columns
from monolith.serving.served_model import ModelVersion, Prediction, ServedModel
from monolith.serving.version_watch import VersionWatch
from monolith.tensors import Ragged
from monolith.train import Params, Session, Task, Trainer, TrainerConfig
from monolith.train.config import RestoringConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from monolith.nn import EmbeddingOutputs, Embeddings
    from monolith.tables import Store

_CLOSE_SECONDS = 10.0
"""How long `close` waits for running calls."""


class TaskModel(ServedModel, Closing):
    """A task served from the newest checkpoint of its model directory. Thread-safe.

    A newer checkpoint is served once it is restored, without a failing call; until then both are in memory. Tables hold
    training rows, which take more memory than the serving rows of an export. Types of requests are those of the first
    batch of `input_fn` for mode ``predict``.

    Args:
        task: Class or parameters of the task: each checkpoint gets its own instance.
        model_dir: Directory of its checkpoints.

    Raises:
        NotFoundError: there is no checkpoint.
        InvalidArgumentError: the type of the predictions is not supported, or the input has no batch.

    >>> import tempfile
    >>> from monolith.serving import TaskModel
    >>> from monolith.testing import ExampleTask
    >>> from monolith.train import Trainer, TrainerConfig
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Trainer(ExampleTask, TrainerConfig(model_dir=folder)).train(steps=2)
    ...     with TaskModel(ExampleTask, folder) as model:
    ...         answer = model.predict({"user": [7, 8], "item": [5, 5]})
    >>> answer.outputs["predictions"].shape, answer.version.export
    (torch.Size([2]), 2)
    """

    answers_alone = True
    """Requests are not batched: the predictions of such a task may depend on other examples of a batch."""

    def __init__(self, task: type[Task] | Params, model_dir: str) -> None:
        self._task = task
        self._model_dir = model_dir
        newest = self._newest()
        if newest is None:
            raise NotFoundError(f"'{model_dir}' has no checkpoint; train the task first, or give another model_dir")
        self._live = TaskSession(task, model_dir, newest)
        self._changed = threading.Condition()
        self._users: dict[TaskSession, int] = {}
        """Active session -> number of its running calls."""
        self._watch = VersionWatch("task", next_version=self._other, activate=self._activate)
        self._watch.start()

    # Predictions

    def predict(self, inputs: Mapping[str, Any] | bytes, signature: str = DEFAULT_SIGNATURE) -> Prediction:
        """Predicts examples.

        Args:
            inputs: Columns by name, as `Predictor.predict` takes them. Encoded samples are rejected: only the task can
                parse them.
            signature: Name of the signature.

        Raises:
            InvalidArgumentError: inputs do not fit the signature; the message names them.
            NotFoundError: the task does not have this signature.
            UnavailableError: the model is closed.
        """
        session = self._take()
        try:
            return self._answer(session, inputs, signature)
        finally:
            self._give_back(session)

    def _answer(self, session: TaskSession, inputs: Mapping[str, Any] | bytes, signature: str) -> Prediction:
        spec = session.signatures.get(signature)
        if spec is None:
            known = ", ".join(sorted(session.signatures))
            raise NotFoundError(f"model {session.name!r} has no signature {str(signature)[:80]!r}, it has {known}")
        if isinstance(inputs, bytes) or encoded_samples(inputs, spec) is not None:
            raise InvalidArgumentError("encoded samples are read by exports alone, and this is a task; give columns")
        columns = typed_columns(inputs, spec, name=signature)
        num_rows = columns.num_examples
        batch = Batch(
            {name: for_all(_shaped(values, spec.inputs[name]), num_rows) for name, values in columns.items()},
            num_rows=num_rows,
        )
        outputs = named_predictions(session.predict(batch), subject=f"signature {signature!r}")
        return Prediction(outputs, ModelVersion(session.step, OWN_WEIGHTS, {}))

    @property
    def name(self) -> str:
        """Name of the task."""
        return self._live.name

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """Signatures by name."""
        return self._live.signatures

    @property
    def version(self) -> ModelVersion:
        """Version, with the global step of the checkpoint as the export."""
        return ModelVersion(self._live.step, OWN_WEIGHTS, {})

    # Status

    @property
    def why_not_ready(self) -> str | None:
        """Reason as a sentence; None: ready."""
        return "it is closed" if self._watch.stopped.is_set() else None

    @property
    def problem(self) -> str | None:
        """Why a newer checkpoint is not served; None: no problem."""
        return self._watch.problem

    @property
    def num_rows(self) -> int:
        """Number of rows of all tables."""
        return sum(store.stats().rows for store in self._live.stores.values())

    @property
    def memory_bytes(self) -> int:
        """Memory of the tables."""
        return sum(store.stats().memory_bytes for store in self._live.stores.values())

    def close(self) -> None:
        """Closes the model after running calls are completed; a hanging call is abandoned after 10 s. Idempotent."""
        self._watch.close()
        with self._changed:
            is_idle = self._changed.wait_for(lambda: not self._users, _CLOSE_SECONDS)
        if is_idle:
            self._live.close()

    # Checkpoints

    def _take(self) -> TaskSession:
        """Borrows the active session, which stays open until it is returned."""
        with self._changed:
            if self._watch.stopped.is_set():
                raise UnavailableError("predictor: it is closed")
            self._users[self._live] = self._users.get(self._live, 0) + 1
            return self._live

    def _give_back(self, session: TaskSession) -> None:
        with self._changed:
            self._users[session] -= 1
            unused = not self._users[session]
            if unused:
                del self._users[session]
                self._changed.notify_all()
            leaves = unused and session is not self._live
        if leaves:
            session.close()

    def _newest(self) -> str | None:
        state = get_checkpoint_state(self._model_dir, training=False)
        return None if state is None else state.model_checkpoint_path

    def _other(self) -> str | None:
        """Returns the current checkpoint of the folder if another one is active."""
        newest = self._newest()
        return None if newest == self._live.checkpoint else newest

    def _activate(self, checkpoint: str) -> None:
        new = TaskSession(self._task, self._model_dir, checkpoint)
        if self._watch.is_given_up:
            new.close()
            return
        with self._changed:
            old, self._live = self._live, new
            unused = old not in self._users
        if unused:
            old.close()


def _shaped(values: Column, spec: InputSpec) -> Column:
    """Reshapes ids to the shape that the task expects, if possible: a server passes them as rows."""
    if spec.ragged or spec.kind != "ids" or not isinstance(values, Ragged):
        return values
    width = 1 if len(spec.shape) == 1 else spec.shape[1]
    if width is None or not bool((values.lengths() == width).all()):
        return values
    flat = values.flat_values
    return flat if len(spec.shape) == 1 else flat.reshape(values.num_rows, width)


class TaskSession:
    """One checkpoint of a task. Thread-safe; the session's own thread processes batches one at a time."""

    def __init__(self, task: type[Task] | Params, model_dir: str, checkpoint: str) -> None:
        config = TrainerConfig(model_dir=model_dir, restoring=RestoringConfig(checkpoint=checkpoint))
        self._trainer = Trainer(task, config)
        self.name = str(self._trainer.task.p.name)
        self.checkpoint = checkpoint
        self._waiting: SimpleQueue[tuple[Batch, Future[Any]] | None] = SimpleQueue()
        opened: Future[dict[str, Signature]] = Future()
        self._thread = threading.Thread(target=self._run, args=(opened,), name="monolith-task", daemon=True)
        self._thread.start()
        self.signatures = opened.result()

    @property
    def step(self) -> int:
        """Global step of the checkpoint."""
        return 0 if self._trainer.state is None else self._trainer.state.global_step

    @property
    def stores(self) -> Mapping[str, Store]:
        """Stores of the tables, by name."""
        return {} if self._trainer.state is None else self._trainer.state.stores

    def predict(self, batch: Batch) -> Any:
        """Predicts a batch, as `Trainer.predict` does. Must not be called after `close`."""
        done: Future[Any] = Future()
        self._waiting.put((batch, done))
        return done.result()

    def close(self) -> None:
        """Completes queued batches, and closes the session. Idempotent."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self, opened: Future[dict[str, Signature]]) -> None:
        """Predicts, in the thread of the session."""
        try:
            with self._trainer.inference_session() as session:
                opened.set_result(_signatures(session))
                while (queued := self._waiting.get()) is not None:
                    batch, done = queued
                    try:
                        done.set_result(session.run(batch).predictions)
                    except BaseException as error:  # noqa: BLE001 - raised by `predict`
                        done.set_exception(error)
        except BaseException as error:  # raised by the constructor
            if opened.done():
                raise
            opened.set_exception(error)


def _signatures(session: Session) -> dict[str, Signature]:
    """Returns the signatures of the task, with the types of the first batch of its input for predictions."""
    task = session.task
    subject = f"task {task.p.name}"
    try:
        batch = next(iter(task.input_fn("predict")))
    except (StopIteration, NotImplementedError, OSError) as error:
        raise InvalidArgumentError(
            f"{subject}: types of requests are those of the first batch of input_fn('predict'), which has none: {error}"
        ) from error
    example, texts = columns_of(batch), batch.texts if isinstance(batch, Batch) else {}
    reads_of = {name: list(reads) for name, reads in task.signatures().items()} or {DEFAULT_SIGNATURE: list(example)}
    signatures = {}
    for name, reads in reads_of.items():
        missing = [column for column in reads if column not in example]
        if missing:
            raise InvalidArgumentError(
                f"{subject}, signature {name!r}: the first batch of input_fn('predict') has no column {missing[0]!r}"
            )
        columns = {column: example[column] for column in reads}
        signatures[name] = _signature(session, columns, texts, subject=f"{subject}, signature {name!r}")
    return signatures


def _signature(
    session: Session, columns: Mapping[str, Tensor | Ragged], texts: Mapping[str, TextColumn], *, subject: str
) -> Signature:
    num_rows = next(values.num_rows if isinstance(values, Ragged) else values.shape[0] for values in columns.values())
    batch = WatchedBatch(columns, num_rows=num_rows)
    ids: set[str] = set()
    with torch.no_grad(), _noting(batch, ids):
        predictions = session.task.model_fn(batch, "predict").predictions
    outputs = named_predictions(predictions, subject=subject)
    read = [name for name in columns if name in ids or name in batch.read]
    return Signature(
        inputs={
            name: InputSpec.of(columns[name], "ids" if name in ids else "dense", texts.get(name))
            for name in sorted(read)
        },
        outputs={name: OutputSpec.of(values, num_rows) for name, values in outputs.items()},
    )


@contextmanager
def _noting(batch: WatchedBatch, ids: set[str]) -> Iterator[None]:
    """Records columns whose rows are looked up inside the context as columns of ids."""

    def look_up(module: Embeddings, columns: Mapping[str, Any]) -> EmbeddingOutputs:
        by_slot = {
            slot: columns.unwatched(slot) if isinstance(columns, WatchedBatch) else columns.get(slot)
            for slot in module.slots
        }
        known = {id(batch.unwatched(name)): name for name in batch}
        ids.update(known[id(values)] for values in by_slot.values() if id(values) in known)
        with BatchContext({}):
            looked_up: EmbeddingOutputs = module(
                {slot: values for slot, values in by_slot.items() if values is not None}
            )
        return looked_up

    with BatchContext(batch, lookup_override=look_up):
        yield
