"""`<prefix>.meta`: what the model looks like, for people and tools. Nothing is rebuilt from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith.checkpoint.manifest import canonical
from monolith.checkpoint.tensor_file import tensor_descriptions
from monolith.nn.embeddings.row_parameters import RowAnchor

if TYPE_CHECKING:
    from torch import nn

    from monolith.checkpoint.train_state import TrainState

META_VERSION = 1


def model_meta(state: TrainState) -> bytes:
    """Returns modules, weights, slots and optimizers as canonical JSON: equal for equal models."""
    document: dict[str, Any] = {"format": "monolith-model-meta", "version": META_VERSION}
    document["modules"] = {} if state.model is None else _modules(state.model)
    document["weights"] = {} if state.model is None else tensor_descriptions(dict(_weights(state.model)))
    document["slots"] = {
        name: {slot: {"dim": config.dim, "combiner": str(config.combiner)} for slot, config in module.slots.items()}
        for name, module in state.embeddings.items()
    }
    document["tables"] = {
        name: {table: list(slots) for table, slots in module.tables.items()}
        for name, module in state.embeddings.items()
    }
    document["optimizers"] = {name: _class_name(optimizer) for name, optimizer in state.optimizers.items()}
    document["schedules"] = {name: _class_name(schedule) for name, schedule in state.schedules.items()}
    return canonical(document)


def _modules(model: nn.Module) -> dict[str, str]:
    return {name: _class_name(module) for name, module in model.named_modules()}


def _weights(model: nn.Module) -> Any:
    yield from ((name, each) for name, each in model.named_parameters() if not isinstance(each, RowAnchor))
    yield from model.named_buffers()


def _class_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
