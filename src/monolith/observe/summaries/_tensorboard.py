"""The parts of TensorBoard in use: its protos and record framing, none of which loads TensorFlow."""

from __future__ import annotations

import importlib
from typing import Any

import torch


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
