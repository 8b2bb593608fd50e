"""The kinds of summaries: numbers, histograms, tensors with the meaning of their numbers in their head.

Each function returns a ``Summary`` proto of TensorBoard, for `SummaryWriter.add_summary`. The value of a tensor has the
tag ``[<name>_]<type>/monolith_...``. TensorBoard's protos and record framing do not load TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from monolith.errors import NotFoundError
from monolith.observe.summaries.head import (
    MONOLITH_FI_DATA,
    MONOLITH_NAS_DATA,
    PLUGIN_NAME,
    SummaryType,
    encode_head,
    prepare_head,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from monolith.observe.summaries.head import Sizes


def feature_insight(x: Tensor, weight: Tensor, segment_sizes: Sequence[int], *, aggregate: bool = False) -> Tensor:
    """Returns the part of ``x W`` that each segment of x's columns contributes.

    ``out[b, f K + k] = sum over columns j of segment f of x[b, j] W[j, k]``; with `aggregate`,
    ``out[b, f] = sum over k of out[b, f K + k]^2``.

    Args:
        x: ``[B, D]``.
        weight: W ``[D, K]``. A torch layer keeps its transpose.
        segment_sizes: Number of columns of each of F features, in order; they add up to D.
        aggregate: Whether to sum the squares of a feature's K parts.

    Returns:
        ``[B, F K]``, or ``[B, F]`` with `aggregate`.
    """
    if x.ndim != 2:
        raise ValueError(f"feature_insight: x must have shape [B, D], got {list(x.shape)}")
    if weight.ndim != 2 or weight.shape[0] != x.shape[1]:
        raise ValueError(f"feature_insight: weight must have shape [{x.shape[1]}, K], got {list(weight.shape)}")
    sizes = require_segments("feature_insight", segment_sizes, x.shape[1])
    parts = [part @ rows for part, rows in zip(torch.split(x, sizes, dim=1), torch.split(weight, sizes), strict=True)]
    if aggregate:
        return torch.stack([part.square().sum(dim=1) for part in parts], dim=1)
    return torch.cat(parts, dim=1)


def require_segments(subject: str, segment_sizes: Sequence[int], num_columns: int) -> list[int]:
    """Returns the sizes as a list; raises unless there is one, all are at least 1 and they add up to the columns."""
    sizes = list(segment_sizes)
    if not sizes:
        raise ValueError(f"{subject}: segment_sizes must have at least one size, got none")
    for index, size in enumerate(sizes):
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"{subject}: segment_sizes[{index}] must be an integer, got {size!r}")
        if size < 1:
            raise ValueError(f"{subject}: segment_sizes[{index}] must be >= 1, got {size}")
    if sum(sizes) != num_columns:
        raise ValueError(f"{subject}: segment_sizes must add up to {num_columns} columns, got {sum(sizes)}")
    return sizes


def import_tensorboard(module: str) -> Any:
    """Imports a module of TensorBoard."""
    try:
        return importlib.import_module(f"tensorboard.{module}")
    except ModuleNotFoundError as error:
        message = "summaries need tensorboard, which is not installed; run: pip install 'monolith-torch[tensorboard]'"
        raise ModuleNotFoundError(message, name=error.name) from error


def tensor_proto(values: Any) -> Any:
    """Returns values as a TensorProto; bfloat16, which numpy does not have, as float32."""
    tensor = torch.as_tensor(values).detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return import_tensorboard("util.tensor_util").make_tensor_proto(tensor.contiguous().numpy())


def scalars(numbers: Mapping[str, float]) -> Any:
    """Returns a ``Summary`` proto with a value for each number, for `SummaryWriter.add_summary`."""
    summary_type = import_tensorboard("compat.proto.summary_pb2").Summary
    return summary_type(value=[summary_type.Value(tag=tag, simple_value=number) for tag, number in numbers.items()])


_MOST_BINS = 30


def histograms(numbers: Mapping[str, Sequence[float]]) -> Any:
    """Returns a ``Summary`` proto with a histogram for each non-empty list, for `SummaryWriter.add_summary`."""
    proto = import_tensorboard("compat.proto.summary_pb2")
    summary_values = [
        proto.Summary.Value(tag=tag, histo=_histogram(proto, np.asarray(values, np.float64)))
        for tag, values in numbers.items()
        if len(values)
    ]
    return proto.Summary(value=summary_values)


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


def create_summary_metadata(description: str | None = None, meta_content: bytes | str = b"") -> Any:
    """Returns the ``SummaryMetadata`` of a tensor for our plugin; a text becomes UTF-8."""
    protos = import_tensorboard("compat.proto.summary_pb2")
    content = meta_content.encode() if isinstance(meta_content, str) else meta_content
    return protos.SummaryMetadata(
        summary_description=description,
        plugin_data=protos.SummaryMetadata.PluginData(plugin_name=PLUGIN_NAME, content=content),
        data_class=protos.DATA_CLASS_TENSOR,
    )


def nas_data(  # noqa: PLR0913, PLR0917 - the signature of ByteDance Monolith
    weight: Any,
    segment_names: Sequence[str] | None = None,
    segment_sizes: Sizes | None = None,
    group_info: Sequence[Sequence[str]] | None = None,
    raw_tag: str | None = None,
    collections: None = None,
    description: str | None = None,
    name: str | None = None,
) -> Any:
    """Returns a summary of architecture weights.

    Args:
        weight: The weights, of any shape.
        segment_names: See `prepare_head`; without names and sizes the head is empty.
        segment_sizes: See `prepare_head`.
        group_info: See `prepare_head`.
        raw_tag: See `prepare_head`.
        collections: Rejected: there are no graph collections; give the summary to a `SummaryWriter`.
        description: Shown by TensorBoard; by default the type.
        name: Goes in front of the type in the tag.
    """
    _refuse_collections("nas_data", collections)
    head, kind = prepare_head(segment_names, segment_sizes, group_info, raw_tag, out_type="bytes")
    scope = "_".join(part for part in (name, kind) if part)
    return _summary(f"{scope}/{MONOLITH_NAS_DATA}".lstrip("/"), weight, description or kind, head)


def feature_insight_data(  # noqa: PLR0913, PLR0917 - the signature of ByteDance Monolith
    input_tensor: Tensor,
    segment_names: Sequence[str],
    segment_sizes: Sequence[int],
    weight: Tensor | None = None,
    group_info: Sequence[Sequence[str]] | None = None,
    label: Tensor | None = None,
    collections: None = None,
    description: str | None = None,
    name: str | None = None,
) -> Any:
    """Returns a summary of how much each feature moves the first layer of a tower, per example.

    Args:
        input_tensor: ``[B, D]``, the input of the layer.
        segment_names: Names of the n features, in the order of the columns.
        segment_sizes: Number of columns of each; they add up to D.
        weight: ``[D, K]``, the kernel of the layer. Without it the input itself is written, sizes as given.
        group_info: See `prepare_head`; used with a label only.
        label: ``[B]`` or ``[B, L]``. With it the type is fi_train: each feature's K parts of the product, then the
            labels, ``[B, n K + L]``. Without it fi_direct: the sum of squares of the parts, ``[B, n]``.
        collections: Rejected: there are no graph collections; give the summary to a `SummaryWriter`.
        description: Shown by TensorBoard; by default the type.
        name: Goes in front of the type in the tag.
    """
    _refuse_collections("feature_insight_data", collections)
    if len(segment_names) != len(segment_sizes):
        raise ValueError(
            f"feature_insight_data: every segment needs a size, got {len(segment_names)} names and "
            f"{len(segment_sizes)} sizes"
        )
    if input_tensor.ndim != 2:
        raise ValueError(f"feature_insight_data: input_tensor must have shape [B, D], got {list(input_tensor.shape)}")
    sizes = require_segments("feature_insight_data", segment_sizes, input_tensor.shape[1])
    data = input_tensor.detach()
    if weight is not None:
        data = feature_insight(data, weight.detach(), sizes, aggregate=label is None)
        sizes = [data.shape[1] // len(sizes)] * len(sizes)
    labels = _labels(label, input_tensor.shape[0])
    kind = SummaryType.FEATURE_INSIGHT_DIRECT if labels is None else SummaryType.FEATURE_INSIGHT_TRAIN
    head, _ = prepare_head(segment_names, sizes, group_info, kind, out_type="json")
    head["label_size"] = 0 if labels is None else labels.shape[1]
    if labels is not None:
        data = torch.cat([data.float(), labels.to(data.device)], dim=1)
    scope = f"{name}_{kind}" if name else kind
    return _summary(f"{scope}/{MONOLITH_FI_DATA}", data, description or kind, encode_head(head))


def _refuse_collections(subject: str, collections: object) -> None:
    if collections is not None:
        raise ValueError(
            f"{subject}: there are no graph collections, got collections={collections!r}; give the summary to a"
            " SummaryWriter"
        )


def _labels(label: Tensor | None, num_examples: int) -> Tensor | None:
    if label is None:
        return None
    if label.ndim not in {1, 2} or label.shape[0] != num_examples:
        raise ValueError(
            f"feature_insight_data: label must have shape [{num_examples}] or [{num_examples}, L], "
            f"got {list(label.shape)}"
        )
    columns = label.detach().float()
    return columns.unsqueeze(1) if columns.ndim == 1 else columns


def _summary(tag: str, values: Any, description: str | None, head: bytes) -> Any:
    protos = import_tensorboard("compat.proto.summary_pb2")
    metadata = create_summary_metadata(description, head)
    return protos.Summary(value=[protos.Summary.Value(tag=tag, tensor=tensor_proto(values), metadata=metadata)])


def nas_weight_json(tensors: Mapping[str, Any], prefix: str | None = None) -> list[str]:
    """Returns the values of the first tensor whose name contains `prefix`, flattened, each as a text.

    Args:
        tensors: Name -> tensor or array, such as the dense weights of a checkpoint.
        prefix: A part of the name; required. ByteDance Monolith has a default, ``ARCH_TENSOR_PREFIX``, that is
            defined nowhere.

    Raises:
        NotFoundError: No name contains the prefix; lists the names.
    """
    if not prefix:
        raise ValueError(
            f"nas_weight_json: prefix must be given, a part of the name of the architecture weights, got {prefix!r}; "
            "there is no default (ARCH_TENSOR_PREFIX of ByteDance Monolith is defined nowhere)"
        )
    for name, values in tensors.items():
        if prefix in name:
            tensor = torch.as_tensor(values).detach().cpu()
            tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
            return [str(value) for value in tensor.contiguous().numpy().flat]
    seen = ", ".join(repr(name) for name in tensors) or "none"
    raise NotFoundError(f"no architecture weights: no tensor name contains {prefix!r}; names are: {seen}")
