"""State of a model without its tables, of an optimizer by the names of its parameters, and of random generators."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from monolith.errors import FailedPreconditionError
from monolith.nn import Embeddings, without_rows
from monolith.nn.embeddings import EXTRA_STATE, uncounted_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.optim import Optimizer


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


_FUNCTIONS = "functions"
"""Options that are functions, such as a schedule as learning rate: a resumed run uses those it is given."""


def parameter_names(optimizer: Optimizer, model: nn.Module | None) -> list[str]:
    """Returns a name for each parameter in the optimizer's order: the model's, or its number if the model has none."""
    known = {} if model is None else {id(value): name for name, value in model.named_parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [known.get(id(parameter), f"#{number}") for number, parameter in enumerate(parameters)]


def named_state(optimizer: Optimizer, model: nn.Module | None) -> dict[str, Any]:
    """Returns `optimizer.state_dict()` with names instead of numbers; tensors are not copied."""
    names = parameter_names(optimizer, model)
    saved = optimizer.state_dict()
    groups = []
    for group in saved["param_groups"]:
        plain = {key: value for key, value in group.items() if not callable(value)}
        groups.append(
            {
                **plain,
                "params": [names[number] for number in group["params"]],
                _FUNCTIONS: sorted(group.keys() - plain.keys()),
            }
        )
    state = {names[number]: values for number, values in saved["state"].items()}
    return {**saved, "state": state, "param_groups": groups}


def numbered_state(saved: Mapping[str, Any], optimizer: Optimizer, model: nn.Module | None) -> dict[str, Any]:
    """Returns what `optimizer.load_state_dict` takes; parameters without saved state start from the initial state.

    Raises:
        FailedPreconditionError: the parameter groups differ.
    """
    names = parameter_names(optimizer, model)
    own = optimizer.state_dict()["param_groups"]
    if len(own) != len(saved["param_groups"]):
        raise FailedPreconditionError(
            f"optimizer {type(optimizer).__name__}: {len(own)} parameter groups, the checkpoint has"
            f" {len(saved['param_groups'])}; build it as it was, or restore without optimizers"
        )
    groups = []
    for mine, theirs in zip(own, saved["param_groups"], strict=True):
        kept = {key: value for key, value in theirs.items() if key not in {"params", _FUNCTIONS}}
        functions = {key: mine[key] for key in theirs[_FUNCTIONS] if key in mine}
        groups.append({**kept, **functions, "params": mine["params"]})
    state = {number: saved["state"][name] for number, name in enumerate(names) if name in saved["state"]}
    return {**saved, "state": state, "param_groups": groups}


def random_state() -> dict[str, Any]:
    """Returns the state that `set_random_state` takes."""
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002 - the global generator
    version, numbers, gauss = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": {"name": name, "keys": keys, "position": position, "has_gauss": has_gauss, "cached": cached},
        "python": {"version": version, "numbers": np.array(numbers, np.uint32), "gauss": gauss},
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = [generator.cpu() for generator in torch.cuda.get_rng_state_all()]
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restores the generators; skips those of GPUs that this machine does not have."""
    torch.set_rng_state(state["torch"].clone())
    numpy = state["numpy"]
    np.random.set_state(  # noqa: NPY002 - the global generator
        (numpy["name"], numpy["keys"].copy(), numpy["position"], numpy["has_gauss"], numpy["cached"])
    )
    python = state["python"]
    random.setstate((python["version"], tuple(python["numbers"].tolist()), python["gauss"]))
    if "cuda" in state and torch.cuda.is_available():
        for device, generator in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(generator.clone(), device)
