"""A server in the process that measures, on a core of its own where there are two."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.suites.serving.load_client import LoadClient
from benchmarks.suites.serving.served_deepfm import NAMES
from monolith.export.signature import DEFAULT_SIGNATURE, InputSpec, Signature
from monolith.serving.served_model import ModelVersion, Prediction
from monolith.serving.server import ModelRegistry, ModelServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from monolith.serving.server import ServedModel

SWITCH_SECONDS = 0.0005
"""As ``monolith serve`` has it."""


class AnsweringModel:
    """Returns the same answer immediately, so that only the server is measured.

    Args:
        scores: The answer.
    """

    name = "ranker"
    version = ModelVersion(1, -1, {})
    is_ready = True
    why_not_ready = None
    problem = None
    staleness = None
    num_rows = 0
    memory_bytes = 0

    def __init__(self, scores: torch.Tensor) -> None:
        ids = {name: InputSpec(kind="ids", dtype="int64", shape=(None,)) for name in NAMES}
        self.signatures = {DEFAULT_SIGNATURE: Signature(inputs=ids, outputs={})}
        self._answer = Prediction({"predictions": scores}, self.version)

    def predict(self, inputs: Any, signature: str = DEFAULT_SIGNATURE) -> Prediction:  # noqa: ARG002 - the interface
        """Returns the scores."""
        return self._answer

    def close(self) -> None:
        """Holds nothing."""


@contextmanager
def client_and_one_core() -> Iterator[LoadClient]:
    """A client on all cores but one, and this process with the threads it starts from now on that one core."""
    if not hasattr(os, "sched_setaffinity"):
        with LoadClient() as client:
            yield client
        return
    before = sorted(os.sched_getaffinity(0))
    with LoadClient(before[1:] or None) as client:
        os.sched_setaffinity(0, before[:1])
        try:
            yield client
        finally:
            os.sched_setaffinity(0, before)


@contextmanager
def running_server(model: ServedModel, **options: Any) -> Iterator[ModelServer]:
    """A server of one model, ``ranker``; both end with the block."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    registry = ModelRegistry()
    registry.add("ranker", model)
    try:
        with ModelServer(registry, **options) as server:
            yield server
    finally:
        registry.close()
        sys.setswitchinterval(before)
