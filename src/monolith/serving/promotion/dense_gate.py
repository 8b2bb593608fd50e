"""Applies the gate to dense weights of the delta log; rows do not pass through it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from monolith.serving.live_model import LiveModel
    from monolith.serving.loaded_model import Weights
    from monolith.serving.promotion.gate import GateVerdict, PromotionGate


_log = logging.getLogger(__name__)


class _Outputs(NamedTuple):
    outputs: Mapping[str, Tensor]


class WithWeights:
    """A model with candidate weights, for the gate."""

    def __init__(self, live: LiveModel, weights: Weights) -> None:
        self._model = live.model
        self._weights = weights

    @property
    def signatures(self) -> Mapping[str, Any]:
        """Signatures by name."""
        return self._model.signatures

    def predict(self, inputs: Any, signature: str) -> _Outputs:
        """Predicts with the candidate weights and the current rows."""
        return _Outputs(self._model.signature(signature).answer(inputs, self._weights).outputs)


class DenseGate:
    """Gate between the delta log and a model's weights. One thread judges, always the newest weights. Thread-safe.

    The rows that weights need are applied before the weights are offered, and only become newer while they wait.

    Args:
        live: The model; its `current` holds the weights that passed last.
        gate: The gate.
    """

    def __init__(self, live: LiveModel, gate: PromotionGate) -> None:
        self._live = live
        self._gate = gate
        self._changed = threading.Condition()
        self._offered: tuple[Weights, int] | None = None
        self._is_ending = False
        self.awaits_first = False
        """Whether weights were offered and none judged yet: the model still serves the weights of its export."""
        self._thread: threading.Thread | None = None
        self.problem: str | None = None
        """Why the last judged weights are not served; None: they are."""

    def offer(self, candidate: tuple[Weights, int]) -> None:
        """Offers new weights with the number of their increment; they replace waiting ones."""
        with self._changed:
            self._offered = candidate
            if self._thread is None:
                self.awaits_first = True
                self._thread = threading.Thread(target=self._run, name="monolith-gate", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Stops the thread; waiting weights are not served. Idempotent."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        torch.set_num_threads(1)  # of this thread; leaves the cores to requests
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._offered is not None or self._is_ending)
                candidate, self._offered = self._offered, None
                if self._is_ending or candidate is None:
                    return
            weights, number = candidate
            served, _ = self._live.current
            verdict = self._gate.judge(
                WithWeights(self._live, weights), kind="dense", against=WithWeights(self._live, served)
            )
            if verdict.refused is None:
                self._live.current = candidate
            self._note(number, verdict)
            self.awaits_first = False

    def _note(self, number: int, verdict: GateVerdict) -> None:
        if verdict.refused is None:
            self.problem = None
            return
        _, served = self._live.current
        told = "those of the export" if served < 0 else f"those of increment {served}"
        self.problem = (
            f"dense weights of increment {number} of the delta log did not pass the gate, {told} are served:"
            f" {verdict.refused}"
        )
        _log.error("predictor: %s", self.problem)
