"""Plain numbers as a summary, which every dashboard of TensorBoard shows as curves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith.observe.summaries._tensorboard import import_tensorboard

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["scalars"]


def scalars(numbers: Mapping[str, float]) -> Any:
    """Returns a ``Summary`` proto with a value for each number, for `SummaryWriter.add_summary`."""
    summary_type = import_tensorboard("compat.proto.summary_pb2").Summary
    return summary_type(value=[summary_type.Value(tag=tag, simple_value=number) for tag, number in numbers.items()])
