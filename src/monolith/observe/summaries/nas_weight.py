"""Architecture weights out of named tensors, as texts for a JSON document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from monolith.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping


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
