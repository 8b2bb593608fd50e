"""The server of ``monolith serve``: models by name and version, with the HTTP and gRPC interfaces of TF-Serving.

Read `server.py` first. A front end decodes a request to columns (`columns.py`), the queue decides which requests are
admitted and batched (`request_queue.py`, which neither blocks nor uses threads), `model_threads.py` calls the models.
Importing it opens no resources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith._deprecated import former_names as _former_names
from monolith.serving.server.config import LimitsConfig, ServerConfig
from monolith.serving.server.model import ServedModel
from monolith.serving.server.registry import ModelRegistry
from monolith.serving.server.request_queue import OverloadedError, RequestQueueConfig
from monolith.serving.server.server import ModelServer

__all__ = [
    "LimitsConfig",
    "ModelRegistry",
    "ModelServer",
    "OverloadedError",
    "RequestQueueConfig",
    "ServedModel",
    "ServerConfig",
]

if not TYPE_CHECKING:  # type checkers accept only the current names
    __getattr__ = _former_names(__name__, {"Limits": "LimitsConfig", "QueueRules": "RequestQueueConfig"})
