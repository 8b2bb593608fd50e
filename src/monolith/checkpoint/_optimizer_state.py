"""State of a torch optimizer by the names of its parameters, so that it survives another order of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from monolith.errors import FailedPreconditionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.optim import Optimizer

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
        given = {key: mine[key] for key in theirs[_FUNCTIONS] if key in mine}
        groups.append({**kept, **given, "params": mine["params"]})
    state = {number: saved["state"][name] for number, name in enumerate(names) if name in saved["state"]}
    return {**saved, "state": state, "param_groups": groups}


def misfits(saved: Mapping[str, Any], optimizer: Optimizer, model: nn.Module | None) -> list[str]:
    """Returns the names of parameters whose saved state has another shape than they have now."""
    names = parameter_names(optimizer, model)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [
        name
        for name, parameter in zip(names, parameters, strict=True)
        if any(
            isinstance(value, Tensor) and value.ndim == parameter.ndim > 0 and value.shape != parameter.shape
            for value in saved["state"].get(name, {}).values()
        )
    ]
