"""The weights of a model without its tables, which a checkpoint keeps in files of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith.nn import Embeddings, without_rows
from monolith.nn.embeddings.saved_state import EXTRA_STATE, uncounted_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn


def model_state(model: nn.Module) -> dict[str, Any]:
    """Returns `model.state_dict()` without rows; the extra states of `Embeddings` are plain values."""
    with uncounted_rows():
        state = dict(model.state_dict())
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, Embeddings):
            state[f"{name}.{EXTRA_STATE}" if name else EXTRA_STATE] = module.saved_state()
    return state


def load_model_state(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Loads the state; rows are restored by the store."""
    with without_rows():
        model.load_state_dict(state)
