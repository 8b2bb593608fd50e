"""Serving: answers requests with trained models, in any process and without the training code.

May import `online`, `train` and everything below them; only `cli` and `launch` are above it. Read `predictor.py` first:
it loads the output of `monolith.serving.export`, follows a delta log, and answers the requests of ``monolith serve``,
which is in `server`. `layout` builds the inputs of a graph from requests. `shards` serves and looks up rows that are
divided among processes, `push` sends them to receivers. Messages are those of TensorFlow Serving, so that its clients
need no change: `wire_methods.py`, `tensor_messages.py`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from monolith._deprecated import former_names as _former_names

if TYPE_CHECKING:
    from monolith.export.allowed_operations import allow_operations
    from monolith.export.signature import InputSpec, OutputSpec, Signature
    from monolith.export.writer import ExportConfig
    from monolith.serving.exporting import export
    from monolith.serving.layout import LaidOut, Layout
    from monolith.serving.prediction import ModelVersion, Prediction
    from monolith.serving.predictor import Predictor, import_saved_model
    from monolith.serving.push.client import DiscoverySyncBackend, ParameterSyncClient, result_json
    from monolith.serving.remote_predictor import RemotePredictor
    from monolith.serving.shards.remote_rows import FetchedRows, RemoteRows
    from monolith.serving.shards.replicas import DiscoveredReplicas, ListedReplicas
    from monolith.serving.shards.served_shard import ServedShard, serve_shard
    from monolith.serving.task_model import TaskModel

_HOMES = {
    "DiscoveredReplicas": "monolith.serving.shards.replicas",
    "DiscoverySyncBackend": "monolith.serving.push.client",
    "ExportConfig": "monolith.export.writer",
    "FetchedRows": "monolith.serving.shards.remote_rows",
    "InputSpec": "monolith.export.signature",
    "LaidOut": "monolith.serving.layout",
    "Layout": "monolith.serving.layout",
    "ListedReplicas": "monolith.serving.shards.replicas",
    "ModelVersion": "monolith.serving.prediction",
    "OutputSpec": "monolith.export.signature",
    "ParameterSyncClient": "monolith.serving.push.client",
    "Prediction": "monolith.serving.prediction",
    "Predictor": "monolith.serving.predictor",
    "RemotePredictor": "monolith.serving.remote_predictor",
    "RemoteRows": "monolith.serving.shards.remote_rows",
    "ServedShard": "monolith.serving.shards.served_shard",
    "Signature": "monolith.export.signature",
    "TaskModel": "monolith.serving.task_model",
    "allow_operations": "monolith.export.allowed_operations",
    "export": "monolith.serving.exporting",
    "import_saved_model": "monolith.serving.predictor",
    "result_json": "monolith.serving.push.client",
    "serve_shard": "monolith.serving.shards.served_shard",
}
"""Names are imported on first use, so that a predictor does not import training code."""

__all__ = [
    "DiscoveredReplicas",
    "DiscoverySyncBackend",
    "ExportConfig",
    "FetchedRows",
    "InputSpec",
    "LaidOut",
    "Layout",
    "ListedReplicas",
    "ModelVersion",
    "OutputSpec",
    "ParameterSyncClient",
    "Prediction",
    "Predictor",
    "RemotePredictor",
    "RemoteRows",
    "ServedShard",
    "Signature",
    "TaskModel",
    "allow_operations",
    "export",
    "import_saved_model",
    "result_json",
    "serve_shard",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:  # type checkers accept only the current names
    __getattr__ = _former_names(__name__, {"ExportOptions": "ExportConfig"}, __getattr__)
