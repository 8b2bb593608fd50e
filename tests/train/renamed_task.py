"""A task whose layer has changed its name since the checkpoint was written."""

from __future__ import annotations

from typing import Any

from monolith.testing import ExampleTask

ALIASES = {"head.weight": "top.weight", "head.bias": "top.bias"}
"""New names of weights, and those that checkpoints of `ExampleTask` have."""


class RenamedTask(ExampleTask):
    """The example with its layer under another name."""

    def build(self) -> None:
        super().build()
        self.head = self.top
        del self.top

    def model_fn(self, features: Any, mode: Any) -> Any:
        self.__dict__["top"] = self.head
        try:
            return super().model_fn(features, mode)
        finally:
            del self.__dict__["top"]
