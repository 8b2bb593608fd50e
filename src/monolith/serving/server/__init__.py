"""The server of ``monolith serve``: models by name and version, with the HTTP and gRPC interfaces of TF-Serving.

Read `server.py` first. A front end decodes a request to columns (`columns.py`), the queue decides which requests are
admitted and batched (`request_queue.py`, which neither blocks nor uses threads), `model_threads.py` calls the models.
Importing it opens no resources.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__, {"Limits": "LimitsConfig", "QueueRules": "RequestQueueConfig"})
