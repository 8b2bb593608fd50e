"""Answered requests for tests, and a sink that can be held."""

from __future__ import annotations

from typing import Any

import torch

from monolith.export.signature import InputSpec
from monolith.serving.request_log import AnsweredRequest
from monolith.serving.served_model import ModelVersion
from monolith.tensors import Ragged

IDS = InputSpec(kind="ids", dtype="int64", shape=(None,))
NUMBERS = InputSpec(kind="dense", dtype="float32", shape=(None,))

__all__ = ["answered", "plain"]


def answered(
    request_id: bytes,
    columns: dict[str, Any],
    outputs: dict[str, Any],
    *,
    ids: tuple[str, ...] = (),
    version: ModelVersion | None = None,
) -> AnsweredRequest:
    """A request of these columns, of which some are ids."""
    inputs = {name: IDS if name in ids else NUMBERS for name in columns}
    count = max(each.num_rows if isinstance(each, Ragged) else len(each) for each in columns.values())
    return AnsweredRequest(
        request_id, "ranker", "serving_default", inputs, columns, count, outputs, version or ModelVersion(7, -1, {})
    )


def plain(number: int, examples: int = 2) -> AnsweredRequest:
    """One of many that differ by their number."""
    item = torch.arange(examples) + 100 * number
    columns = {"user": torch.tensor([number]), "item": item}
    return answered(b"r%d" % number, columns, {"predictions": item / 1000}, ids=("user", "item"))
