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

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torch import Tensor

    from monolith.clock import Clock
    from monolith.deltalog import DeltaLog
    from monolith.serving.loaded_model import LoadedModel, Weights
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
    """

    def __init__(self, stores: Mapping[str, LocalStore], log: DeltaLog | None, clock: Clock) -> None:
        self.stores = dict(stores)
        self.follower = None if log is None else Follower(stores, log, on_dense=self._take, clock=clock)
        self._lock = threading.Lock()
        self._model: LiveModel | None = None
        self._dense: tuple[Mapping[str, Tensor], int] | None = None
        """The newest weights of the log, and their number."""
        self._is_started = False

    def begin(self, model: LiveModel) -> bool:
        """Loads rows and weights that the log begins with, before `serve`; whether all tables have rows now."""
        self._model = model
        try:
            return self.follower is not None and self.follower.begin()
        except OpError as error:
            _log.warning("predictor: the export's own rows are served until the log can be followed: %s", error)
            return False

    def serve(self, model: LiveModel) -> None:
        """Gives the dense weights of the log to this model from now on; the first one starts it."""
        with self._lock:
            self._model = model
            if self._dense is not None:
                model.take(*self._dense)
        if not self._is_started and self.follower is not None:
            self._is_started = True
            self.follower.start()

    @property
    def sparse_version(self) -> dict[str, int]:
        """Part -> number of its last increment that is here."""
        return {} if self.follower is None else sparse_version(self.follower)

    def close(self) -> None:
        """Ends following."""
        if self.follower is not None:
            self.follower.close()

    def _take(self, weights: Mapping[str, Tensor]) -> None:
        if self._model is None or self.follower is None:
            return
        with self._lock:
            self._model.take(weights, self.follower.dense_number)
            self._dense = weights, self.follower.dense_number


class LiveModel:
    """A model, its rows, and the weights that it answers with. Any thread may call it."""

    def __init__(self, model: LoadedModel, rows: LiveRows) -> None:
        self.model = model
        self.rows = rows
        self.current: tuple[Weights, int] = (model.weights, OWN_WEIGHTS)
        """Weights and the number of their increment: one reference, so that they change as one."""

    def take(self, weights: Mapping[str, Tensor], number: int) -> None:
        """Answers with these weights from now on; their rows are here."""
        self.current = self.model.with_weights(weights), number

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
