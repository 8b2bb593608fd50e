"""A loaded model whose rows and weights move while it answers."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING

from monolith.deltalog import DENSE_PART
from monolith.errors import OpError
from monolith.online.follower import Follower
from monolith.serving.prediction import ModelVersion
from monolith.serving.promotion.dense_gate import DenseGate

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torch import Tensor

    from monolith.clock import Clock
    from monolith.deltalog import DeltaLog
    from monolith.serving.loaded_model import LoadedModel, Weights
    from monolith.serving.promotion.gate import Gate
    from monolith.tables.local_store import LocalStore

__all__ = ["OWN_WEIGHTS", "LiveModel", "LiveRows", "has_base_of_all", "sparse_version"]

_log = logging.getLogger(__name__)

OWN_WEIGHTS = -1
"""Stands for the dense weights of the export."""


class LiveRows:
    """Tables, and who keeps them up to date. Any thread may ask.

    Args:
        stores: Serving tables by name.
        log: What is followed; None: nothing.
        clock: Measures waits.
        export: The version that they came from.
    """

    def __init__(self, stores: Mapping[str, LocalStore], log: DeltaLog | None, clock: Clock, *, export: int) -> None:
        self.stores = dict(stores)
        self.export = export
        self.follower = None if log is None else Follower(stores, log, on_dense=self._take, clock=clock)
        self._lock = threading.Lock()
        self._models: list[LiveModel] = []
        """Those that answer with these rows: a version that has weights alone uses the rows of one before it."""
        self._dense: tuple[Mapping[str, Tensor], int] | None = None
        """The newest weights of the log, and their number."""
        self._is_started = False

    def begin(self, model: LiveModel) -> bool:
        """Loads rows and weights that the log begins with, before `serve`; whether all tables have rows now."""
        self._models = [model]
        try:
            return self.follower is not None and self.follower.begin()
        except OpError as error:
            _log.warning("predictor: the export's own rows are served until the log can be followed: %s", error)
            return False

    def serve(self, model: LiveModel) -> None:
        """Gives the dense weights of the log to this model, too, from now on; the first one starts it."""
        with self._lock:
            if model not in self._models:
                self._models = [*self._models, model]
                if self._dense is not None:
                    model.take(*self._dense)
            starts, self._is_started = not self._is_started, True
        if starts and self.follower is not None:
            self.follower.start()

    def leave(self, model: LiveModel) -> None:
        """Does so no more; the last one that leaves ends following."""
        with self._lock:
            self._models = [each for each in self._models if each is not model]
            is_last = not self._models
        if model.gate is not None:
            model.gate.close()
        if is_last and self.follower is not None:
            self.follower.close()

    @property
    def sparse_version(self) -> dict[str, int]:
        """Part -> number of its last increment that is here."""
        return {} if self.follower is None else sparse_version(self.follower)

    def _take(self, weights: Mapping[str, Tensor]) -> None:
        if self.follower is None:
            return
        with self._lock:
            for model in self._models:
                model.take(weights, self.follower.dense_number)
            self._dense = weights, self.follower.dense_number


class LiveModel:
    """A model, its rows, and the weights that it answers with. Any thread may call it.

    Args:
        model: What it is.
        rows: Its rows.
        gate: What dense weights of the log must pass; None: they are served as they come.
    """

    def __init__(self, model: LoadedModel, rows: LiveRows, gate: Gate | None = None) -> None:
        self.model = model
        self.rows = rows
        self.current: tuple[Weights, int] = (model.weights, OWN_WEIGHTS)
        """Weights and the number of their increment: one reference, so that they change as one."""
        self.gate = None if gate is None or rows.follower is None else DenseGate(self, gate)

    def take(self, weights: Mapping[str, Tensor], number: int) -> None:
        """Answers with these weights from now on, or once they passed the gate; their rows are here."""
        found = self.model.with_weights(weights), number
        if self.gate is None:
            self.current = found
        else:
            self.gate.offer(found)

    @property
    def awaits_gate(self) -> bool:
        """Whether the first weights of the log are being judged: until then it answers with those of its export."""
        return self.gate is not None and self.gate.awaits_first

    @property
    def version(self) -> ModelVersion:
        """What an answer that begins now is made with, at least."""
        _, dense = self.current
        return ModelVersion(self.model.export.manifest.version, dense, self.rows.sparse_version)


def sparse_version(follower: Follower) -> dict[str, int]:
    """Part of the rows -> number of its last increment that is here."""
    return {part: number for part, number in follower.version.items() if part != DENSE_PART}


def has_base_of_all(log: DeltaLog, stores: Collection[str]) -> bool:
    """Whether followers of a log begin with rows of the log for every store, so that others are not needed."""
    with contextlib.suppress(Exception):
        based = {store for base in log.bases() for store in base.stores}
        return based >= set(stores)
    return False
