"""Numbers of one step as histograms that TensorBoard shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from monolith.observe.summaries._tensorboard import import_tensorboard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["histograms"]

_MOST_BINS = 30


def histograms(numbers: Mapping[str, Sequence[float]]) -> Any:
    """Returns a ``Summary`` proto with a histogram for each non-empty list, for `SummaryWriter.add_summary`."""
    proto = import_tensorboard("compat.proto.summary_pb2")
    made = [
        proto.Summary.Value(tag=tag, histo=_histogram(proto, np.asarray(values, np.float64)))
        for tag, values in numbers.items()
        if len(values)
    ]
    return proto.Summary(value=made)


def _histogram(proto: Any, values: Any) -> Any:
    counts, edges = np.histogram(values, bins=min(_MOST_BINS, len(values)))
    return proto.HistogramProto(
        min=float(values.min()),
        max=float(values.max()),
        num=len(values),
        sum=float(values.sum()),
        sum_squares=float((values * values).sum()),
        bucket_limit=edges[1:].tolist(),
        bucket=counts.tolist(),
    )
