"""Descriptions of a checkpoint for people and tools, `<prefix>.meta` and `ckpt.info-<step>`: no restore reads them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf import text_format

from monolith.checkpoint.protos.ckpt_info_pb2 import CkptInfo
from monolith.checkpoint.tensor_file import tensor_descriptions
from monolith.checkpoint.train_state import extra_state_of
from monolith.files import canonical
from monolith.nn.embeddings import RowAnchor
from monolith.tables import slots_of_keys
from monolith.tables.snapshot import read_keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from monolith.checkpoint.folder import Folder
    from monolith.checkpoint.manifest import Manifest
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
    yield from (
        (name, parameter) for name, parameter in model.named_parameters() if not isinstance(parameter, RowAnchor)
    )
    yield from model.named_buffers()


def _class_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def info_name(step: int) -> str:
    """Returns the name of the file with the rows of each slot."""
    return f"ckpt.info-{step}"


def count_rows(folder: Folder, manifest: Manifest) -> bytes:
    """Returns the text of that file: rows by number and name of the slot. Reads ids only, and only of shared tables."""
    info = CkptInfo()
    for store, tables in manifest.tables.items():
        by_table: dict[str, dict[str, Any]] = {}
        for name, slot in _slots(manifest, store).items():
            by_table.setdefault(slot["table"], {})[name] = slot["number"]
        shared = {table for table, slots in by_table.items() if len(set(slots.values())) > 1}
        numbers = _rows_by_number(folder.place(tables.folder)) if shared else {}
        for table, slots in by_table.items():
            for name, number in slots.items():
                count = numbers.get(table, Counter())[number] if table in shared else tables.rows.get(table, 0)
                info.feature_counts[name] += count
                if number is not None:
                    info.slot_counts[number] = count
    return text_format.MessageToString(info).encode()


def _slots(manifest: Manifest, store: str) -> Mapping[str, Any]:
    weights = manifest.state["model"] or {}
    key = extra_state_of(store)
    slots: Mapping[str, Any] = weights.get(key, {}).get("slots", {})
    return slots


def _rows_by_number(folder: str) -> dict[str, Counter[int]]:
    """Returns table -> number of a slot -> rows."""
    counts: dict[str, Counter[int]] = {}
    for table, keys in read_keys(folder):
        numbers, rows = np.unique(slots_of_keys(keys, table.wide_slots), return_counts=True)
        counts.setdefault(table.name, Counter()).update(dict(zip(numbers.tolist(), rows.tolist(), strict=True)))
    return counts
