"""Dense weights of the delta log wait for the gate; rows do not."""

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
    from monolith.serving.promotion.gate import Gate, Verdict

__all__ = ["DenseGate", "WithWeights"]

_log = logging.getLogger(__name__)


class _Outputs(NamedTuple):
    outputs: Mapping[str, Tensor]


class WithWeights:
    """A model with weights that it does not serve yet, as the gate asks it."""

    def __init__(self, live: LiveModel, weights: Weights) -> None:
        self._model = live.model
        self._weights = weights

    @property
    def signatures(self) -> Mapping[str, Any]:
        """What it can be asked."""
        return self._model.signatures

    def predict(self, inputs: Any, signature: str) -> _Outputs:
        """What it would answer, with the rows that are here now."""
        return _Outputs(self._model.signature(signature).answer(inputs, self._weights).outputs)


class DenseGate:
    """Gives weights to a model once they passed. One thread judges, and always the newest: any thread may offer.

    The rows that weights need are here when they are offered, and only grow newer while they wait.

    Args:
        live: The model; its `current` is what passed last.
        gate: Judges.
    """

    def __init__(self, live: LiveModel, gate: Gate) -> None:
        self._live = live
        self._gate = gate
        self._changed = threading.Condition()
        self._offered: tuple[Weights, int] | None = None
        self._is_ending = False
        self.awaits_first = False
        """Whether weights were offered, and none were judged yet: the model still answers with those it was made of."""
        self._thread: threading.Thread | None = None
        self.problem: str | None = None
        """Why the newest weights that were judged are not served; None: they are."""

    def offer(self, candidate: tuple[Weights, int]) -> None:
        """New weights with the number of their increment; those that still wait are given up for them."""
        with self._changed:
            self._offered = candidate
            if self._thread is None:
                self.awaits_first = True
                self._thread = threading.Thread(target=self._run, name="monolith-gate", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Ends; weights that wait are not served. Again: does nothing."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        torch.set_num_threads(1)  # of this thread: the others are for requests
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

    def _note(self, number: int, verdict: Verdict) -> None:
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
