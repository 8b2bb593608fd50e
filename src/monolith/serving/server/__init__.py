"""The server behind ``monolith serve``: models by name and version, asked over HTTP and gRPC as TF-Serving is.

Read `server.py` first. A front end decodes a request to columns (`columns.py`), the queue decides what is taken in and
what is answered together (`request_queue.py`, which neither waits nor knows threads), `model_threads.py` asks the
models. Importing it opens nothing.
"""

from __future__ import annotations

from monolith.serving.server.config import Limits, ServerConfig
from monolith.serving.server.model import ServedModel
from monolith.serving.server.registry import ModelRegistry
from monolith.serving.server.request_queue import OverloadedError, QueueRules
from monolith.serving.server.server import ModelServer

__all__ = ["Limits", "ModelRegistry", "ModelServer", "OverloadedError", "QueueRules", "ServedModel", "ServerConfig"]
