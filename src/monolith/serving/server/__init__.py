"""The server of ``monolith serve``: models by name and version, with the HTTP and gRPC interfaces of TF-Serving.

Read `server.py` first. A front end decodes a request to columns (`columns.py`), the queue decides which requests are
admitted and batched (`request_queue.py`, which neither blocks nor uses threads), `model_threads.py` calls the models.
Importing it opens no resources.
"""

from __future__ import annotations

from monolith.serving.server.config import Limits, ServerConfig
from monolith.serving.server.model import ServedModel
from monolith.serving.server.registry import ModelRegistry
from monolith.serving.server.request_queue import OverloadedError, QueueRules
from monolith.serving.server.server import ModelServer

__all__ = ["Limits", "ModelRegistry", "ModelServer", "OverloadedError", "QueueRules", "ServedModel", "ServerConfig"]
