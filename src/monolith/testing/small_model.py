"""A model with the interface that a server needs, in a few lines: scores are sums, and a test can block it."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from monolith.data import TextColumn
from monolith.errors import InvalidArgumentError
from monolith.export import DEFAULT_SIGNATURE, InputSpec, OutputSpec, Signature
from monolith.serving import ModelVersion, Prediction
from monolith.tensors import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

UNLUCKY = 13
"""An id that the model rejects."""


class _Staleness(NamedTuple):
    p50: float
    p99: float
    now: float


class SmallModel:
    """Scores an example by the sum of its ids of ``tags`` plus its ``weight``; encoded samples by their length.

    Its signatures are ``serving_default``, ``doubled`` with a second output, ``named`` with texts as tags, ``vector``
    and ``text``.

    Args:
        export: Version of the model.

    >>> SmallModel().predict({"tags": Ragged.from_lists([[1, 2], []]), "weight": torch.ones(2)}).outputs["score"]
    tensor([4., 1.])
    """

    def __init__(self, export: int = 7) -> None:
        inputs = {
            "tags": InputSpec(kind="ids", dtype="int64", shape=(None, None), ragged=True),
            "weight": InputSpec(kind="dense", dtype="float32", shape=(None,)),
        }
        named = {**inputs, "tags": replace(inputs["tags"], texts=TextColumn("tags", "|"))}
        vector = {"vector": InputSpec(kind="dense", dtype="float32", shape=(None, 3))}
        text = {"text": InputSpec(kind="dense", dtype="bytes", shape=(None,))}
        score = {"score": OutputSpec(dtype="float32", shape=(None,))}
        twice = {**score, "twice": OutputSpec(dtype="float32", shape=(None, 1))}
        self.signatures: Mapping[str, Signature] = {
            DEFAULT_SIGNATURE: Signature(inputs=inputs, outputs=score),
            "doubled": Signature(inputs=inputs, outputs=twice),
            "named": Signature(inputs=named, outputs=score),
            "vector": Signature(inputs=vector, outputs=score),
            "text": Signature(inputs=text, outputs=score),
        }
        self.name = "small"
        self.version = ModelVersion(export, -1, {"0": 12})
        self.is_ready = True
        self.why_not_ready: str | None = None
        self.problem: str | None = None
        self.staleness: _Staleness | None = _Staleness(0.1, 0.4, 2.0)
        self.num_rows = 5
        self.memory_bytes = 640
        self.closed = threading.Event()
        self.calls: list[int] = []
        """Number of examples of each call."""
        self.before: Callable[[], None] = lambda: None
        """Called in each call of `predict`."""

    def predict(self, inputs: Any, signature: str = DEFAULT_SIGNATURE) -> Prediction:
        """Returns sums."""
        score = self._score(inputs)
        self.calls.append(len(score))
        self.before()
        outputs = {"score": score}
        if signature == "doubled":
            outputs["twice"] = (2 * score)[:, None]
        return Prediction(outputs, self.version, 4, 3)

    def close(self) -> None:
        """Sets `closed`."""
        self.closed.set()

    @staticmethod
    def _score(inputs: Mapping[str, Any]) -> Tensor:
        for name in ("examples", "instances", "example_batch"):
            if name in inputs:
                return torch.tensor([float(len(values)) for values in inputs[name]])
        if "vector" in inputs:
            vectors: Tensor = inputs["vector"]
            return vectors.sum(dim=1)
        if "text" in inputs:
            return torch.tensor([float(len(text)) for text in inputs["text"]])
        tags = inputs["tags"]
        weight: Tensor = inputs["weight"]
        if not isinstance(tags, Ragged) or weight.dtype is not torch.float32:
            raise TypeError(f"rows of ids and float32 expected, got {type(tags).__name__} and {weight.dtype}")
        ids = tags.flat_values
        if UNLUCKY in ids.tolist():
            raise InvalidArgumentError(f"id {UNLUCKY} brings bad luck")
        sums = torch.zeros(tags.num_rows).index_add(0, tags.value_rowids(), ids.to(torch.float32))
        return sums + weight
