"""A task that cannot be exported, as the page on exports has it: what it does depends on numbers."""

from __future__ import annotations

from typing import Any

from monolith.testing import ExampleTask
from monolith.train import Spec

__all__ = ["Branches", "NamesColumns"]


class Branches(ExampleTask):
    """Doubles its predictions where they are large together."""

    def model_fn(self, features: Any, mode: Any) -> Spec:
        spec = super().model_fn(features, mode)
        if mode == "predict" and spec.predictions.sum().item() > 1:
            spec.predictions = spec.predictions * 2
        return spec


class NamesColumns(ExampleTask):
    """Has signatures of its own, several outputs, and ids under another name."""

    def signatures(self) -> dict[str, list[str]]:
        return {"scores": ["user", "item"], "twice": ["user", "item", "label"]}

    def model_fn(self, features: Any, mode: Any) -> Spec:
        if mode != "predict":
            return super().model_fn(features, mode)
        rows = self.emb({"user": features["user"], "item": features["item"]})
        score = self.top(rows.concat()).squeeze(1)
        outputs = {"score": score, "rows": rows["item"]}
        if "label" in features:
            outputs["doubled"] = score + features["label"]
        return Spec(predictions=outputs)
