"""The context of the current batch, for embeddings that are called with its features.

A loop that plans batches ahead, or that has their times and stamps, opens a context around the model's call; the model
passes the features on unchanged, and `Embeddings` finds their plan in the context::

    context = BatchContext(features, time=1_700_000_000)
    context.plan(emb)                   # checks ids, finds the distinct ones; in any thread
    with context:
        loss = model(features)       # inside: emb(features)

A model may look up other ids than those of the features: they are planned when it calls `Embeddings`, with the time and
the stamp of the context.

A context may supply the outputs of embeddings instead of a lookup: an export makes inputs of them.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextvars import Token
    from types import TracebackType

    from monolith.nn.embeddings.embeddings import Embeddings
    from monolith.nn.embeddings.passes import PlannedBatch
    from monolith.nn.embeddings.pooling import EmbeddingOutputs
    from monolith.tables import BatchStamp

_TURN: ContextVar[BatchContext | None] = ContextVar("monolith_batch_turn", default=None)


class BatchContext:
    """The context of one batch in a model. Belongs to one thread at a time.

    Args:
        features: What the model is called with.
        time: When its examples were seen, Unix seconds; None: when the step is made.
        stamp: Which batch it is; None: batches are counted.
        begin: Called by the computing thread when the context is entered: receives features that were copied to a
            device.
        lookup_override: Called instead of a lookup, with the module and the arguments of the call.
    """

    __slots__ = ("_begin", "_planned", "_token", "features", "lookup_override", "stamp", "time")

    def __init__(
        self,
        features: Mapping[str, Any],
        *,
        time: int | None = None,
        stamp: BatchStamp | None = None,
        begin: Callable[[], object] | None = None,
        lookup_override: Callable[[Embeddings, Mapping[str, Any]], EmbeddingOutputs] | None = None,
    ) -> None:
        self._begin = begin
        self.lookup_override = lookup_override
        self.features = features
        self.time = time
        self.stamp = stamp
        self._planned: dict[Embeddings, PlannedBatch] = {}
        self._token: Token[BatchContext | None] | None = None

    def plan(self, embeddings: Embeddings) -> None:
        """Plans the features for one module, if they have ids for all of its slots."""
        if all(name in self.features for name in embeddings.slots):
            planned = embeddings.plan(self.features, time=self.time, stamp=self.stamp)
            self._planned[embeddings] = planned

    @property
    def planned(self) -> list[Embeddings]:
        """The modules that have a plan here and have not taken it."""
        return list(self._planned)

    def read_ahead(self, embeddings: Embeddings) -> None:
        """Reads, or begins to read, the current rows of a module's plan; repeats a read made before."""
        embeddings.read_ahead(self._planned[embeddings])

    def wait_for_rows(self) -> None:
        """Waits until no read ahead is in flight."""
        for planned in self._planned.values():
            if planned.rows is not None:
                planned.rows.result()

    def take(self, embeddings: Embeddings, features: object) -> PlannedBatch | None:
        """Returns the plan for these features, once: a second pass over them needs a plan of its own."""
        return self._planned.pop(embeddings, None) if features is self.features else None

    def drop(self) -> None:
        """Discards plans that were not taken, so that no plan stays open at a store."""
        for embeddings, planned in self._planned.items():
            embeddings.drop(planned)
        self._planned.clear()

    def __enter__(self) -> Self:
        self._token = _TURN.set(self)
        if self._begin is not None:
            self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._token is not None:
            _TURN.reset(self._token)
            self._token = None
        if self._planned:
            self.drop()


def current_batch_context() -> BatchContext | None:
    """Returns the context of this context."""
    return _TURN.get()
