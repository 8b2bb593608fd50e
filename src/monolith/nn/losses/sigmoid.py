"""Losses and predictions of one head: two classes or many."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

from monolith.nn._arguments import require_choice, require_shape
from monolith.nn.layers.logit_correction import correct_logits
from monolith.nn.losses._reduction import reduce_loss

if TYPE_CHECKING:
    from torch import Tensor

    from monolith.nn.losses._reduction import Reduction


class LossAndPrediction(NamedTuple):
    """The result of a head."""

    loss: Tensor
    """To be minimised."""
    pred: Tensor
    """The prediction, for metrics and serving."""


class SampleRate(NamedTuple):
    """How the examples were sampled, to be undone in the logits of training; see `correct_logits`."""

    rate: Tensor | float | None = None
    """Share of the negatives that was kept."""
    sample_bias: bool = False
    """Whether examples were emitted as negatives first ("fast emit")."""


def get_sigmoid_loss_and_pred(
    logits: Tensor,
    label: Tensor,
    *,
    sample_rate: SampleRate | Tensor | float | None = None,
    instance_weight: Tensor | None = None,
    mask: Tensor | None = None,
    logit_clip_threshold: float | None = None,
    reduction: Reduction = "mean",
) -> LossAndPrediction:
    """Cross entropy of a click and its probability.

    With ``z'`` the corrected logit (see `correct_logits`), ``l = max(z', 0) - z' y + ln(1 + exp(-abs(z')))``. The
    prediction is ``sigmoid(z)`` of the logit without correction and clipping: that of unsampled traffic.

    The loss of ByteDance Monolith was the sum over the batch, which ties learning rate and clipping to the batch size;
    here the mean is the default and ``reduction="sum"`` gives upstream's.

    Args:
        logits: z, any shape.
        label: y in [0, 1], shape of `logits`.
        sample_rate: Share of the negatives that was kept, or a `SampleRate`.
        instance_weight: Weight of each example.
        mask: True where the example counts; elsewhere the label may be anything, NaN too.
        logit_clip_threshold: t in (0, 0.5): bounds ``abs(z')`` by ``ln((1 - t) / t)``.
        reduction: "mean" over the examples that count, "sum" or "none".
    """
    subject = "get_sigmoid_loss_and_pred"
    require_shape(subject, "label", label, tuple(logits.shape))
    sampling = sample_rate if isinstance(sample_rate, SampleRate) else SampleRate(sample_rate)
    corrected = correct_logits(logits, sampling.rate, sample_bias=sampling.sample_bias)
    if logit_clip_threshold is not None:
        corrected = _clipped(corrected, logit_clip_threshold)
    target = label.to(corrected.dtype)
    weights = _weights(subject, logits, instance_weight, mask)
    if weights is not None:
        # Masked values may be NaN, which would return as 0 * NaN in the gradient.
        corrected, target = (torch.where(weights != 0, tensor, 0.0) for tensor in (corrected, target))
    losses = functional.binary_cross_entropy_with_logits(corrected, target, reduction="none")
    return LossAndPrediction(reduce_loss(losses, weights, reduction), torch.sigmoid(logits))


def get_softmax_loss_and_pred(logits: Tensor, label: Tensor, *, reduction: Reduction = "none") -> LossAndPrediction:
    """Cross entropy of one class among C and the class predicted.

    ``l = -sum over c of y_c ln softmax(z)_c``, one per row; the prediction is ``argmax z``.

    Args:
        logits: ``[B, C]``.
        label: Class numbers ``[B]``, or shares ``[B, C]``.
        reduction: "none" (one loss per row), "mean" or "sum".
    """
    subject = "get_softmax_loss_and_pred"
    require_choice(subject, "reduction", reduction, ("mean", "sum", "none"))
    require_shape(subject, "logits", logits, ("B", "C"))
    if label.dtype.is_floating_point:
        require_shape(subject, "label", label, tuple(logits.shape))
    else:
        require_shape(subject, "label", label, (logits.shape[0],))
        label = label.long()
    losses = functional.cross_entropy(logits, label, reduction="none")
    return LossAndPrediction(reduce_loss(losses, None, reduction), logits.argmax(dim=1))


def _weights(subject: str, logits: Tensor, instance_weight: Tensor | None, mask: Tensor | None) -> Tensor | None:
    weights = None
    if instance_weight is not None:
        require_shape(subject, "instance_weight", instance_weight, tuple(logits.shape))
        weights = instance_weight.to(logits.dtype)
    if mask is not None:
        require_shape(subject, "mask", mask, tuple(logits.shape))
        counts = mask.bool()
        weights = counts.to(logits.dtype) if weights is None else torch.where(counts, weights, 0.0)
    return weights


def _clipped(logits: Tensor, threshold: float) -> Tensor:
    if not 0 < threshold < 0.5:
        raise ValueError(f"get_sigmoid_loss_and_pred: logit_clip_threshold must be in (0, 0.5), got {threshold!r}")
    bound = math.log((1.0 - threshold) / threshold)
    return logits.clamp(-bound, bound)
