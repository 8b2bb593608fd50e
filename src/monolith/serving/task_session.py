"""A task restored from a checkpoint that predicts in a thread of its own."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from monolith.data.batch import Batch
from monolith.errors import InvalidArgumentError
from monolith.export.asked_rows import WatchedBatch
from monolith.export.graph import named_predictions
from monolith.export.signature import DEFAULT_SIGNATURE, InputSpec, OutputSpec, Signature
from monolith.export.writer import columns_of
from monolith.nn.embeddings.batch_context import BatchContext
from monolith.tensors import Ragged
from monolith.train import Trainer, TrainerConfig
from monolith.train.config.trainer_config import RestoringConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from monolith.data.text_ids import TextColumn
    from monolith.nn import EmbeddingOutputs, Embeddings
    from monolith.train import Params, Session, Task

__all__ = ["TaskSession"]


class _Asked(NamedTuple):
    """A queued batch."""

    batch: Batch
    done: SimpleQueue[Any]
    """Receives the predictions, or the error."""


class TaskSession:
    """One checkpoint of a task. Thread-safe; the session's own thread processes batches one at a time.

    Args:
        task: Class or parameters of the task.
        model_dir: Directory of its checkpoints.
        checkpoint: The checkpoint to restore.

    Raises:
        OpError: the checkpoint cannot be restored.
        InvalidArgumentError: the type of the predictions is not supported.
    """

    def __init__(self, task: type[Task] | Params, model_dir: str, checkpoint: str) -> None:
        config = TrainerConfig(model_dir=model_dir, restoring=RestoringConfig(checkpoint=checkpoint))
        self._trainer = Trainer(task, config)
        self.name = str(self._trainer.task.p.name)
        self.checkpoint = checkpoint
        self._waiting: SimpleQueue[_Asked | None] = SimpleQueue()
        self._opened: SimpleQueue[BaseException | None] = SimpleQueue()
        self.signatures: dict[str, Signature] = {}
        self._thread = threading.Thread(target=self._run, name="monolith-task", daemon=True)
        self._thread.start()
        error = self._opened.get()
        if error is not None:
            self._thread.join()
            raise error

    @property
    def step(self) -> int:
        """Global step of the checkpoint."""
        return 0 if self._trainer.state is None else self._trainer.state.global_step

    @property
    def num_rows(self) -> int:
        """Number of rows of all tables."""
        state = self._trainer.state
        return 0 if state is None else sum(store.stats().rows for store in state.stores.values())

    @property
    def memory_bytes(self) -> int:
        """Memory of the tables."""
        state = self._trainer.state
        return 0 if state is None else sum(store.stats().memory_bytes for store in state.stores.values())

    def predict(self, batch: Batch) -> Any:
        """Predicts a batch, as `Trainer.predict` does. Must not be called after `close`.

        Raises:
            BaseException: the error raised by `model_fn`.
        """
        asked = _Asked(batch, SimpleQueue())
        self._waiting.put(asked)
        outcome = asked.done.get()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def close(self) -> None:
        """Completes queued batches, and closes the session. Idempotent."""
        self._waiting.put(None)
        self._thread.join()

    # In the thread of the session

    def _run(self) -> None:
        try:
            with self._trainer.looking() as session:
                self.signatures = _signatures(session)
                self._opened.put(None)
                self._answer_all(session)
        except BaseException as error:  # noqa: BLE001 - raised by the constructor
            self._opened.put(error)

    def _answer_all(self, session: Session) -> None:
        while (asked := self._waiting.get()) is not None:
            try:
                asked.done.put(session.run(asked.batch).predictions)
            except BaseException as error:  # noqa: BLE001 - raised by `predict`
                asked.done.put(error)


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
    wanted = {name: list(reads) for name, reads in task.signatures().items()} or {DEFAULT_SIGNATURE: list(example)}
    found = {}
    for name, reads in wanted.items():
        missing = [column for column in reads if column not in example]
        if missing:
            raise InvalidArgumentError(
                f"{subject}, signature {name!r}: the first batch of input_fn('predict') has no column {missing[0]!r}"
            )
        columns = {column: example[column] for column in reads}
        found[name] = _signature(session, columns, texts, subject=f"{subject}, signature {name!r}")
    return found


def _signature(
    session: Session, columns: Mapping[str, Tensor | Ragged], texts: Mapping[str, TextColumn], *, subject: str
) -> Signature:
    num_rows = next(each.num_rows if isinstance(each, Ragged) else each.shape[0] for each in columns.values())
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

    def look_up(module: Embeddings, asked: Mapping[str, Any]) -> EmbeddingOutputs:
        given = {
            slot: asked.unwatched(slot) if isinstance(asked, WatchedBatch) else asked.get(slot) for slot in module.slots
        }
        known = {id(batch.unwatched(name)): name for name in batch}
        ids.update(known[id(each)] for each in given.values() if id(each) in known)
        with BatchContext({}):
            looked_up: EmbeddingOutputs = module({slot: each for slot, each in given.items() if each is not None})
        return looked_up

    with BatchContext(batch, lookup_override=look_up):
        yield
