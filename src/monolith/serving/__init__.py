"""Serving: answers requests with trained models, in any process and without the training code.

May import `online`, `train` and everything below them; only `cli` and `launch` are above it. Read `predictor.py` first:
it loads the output of `monolith.serving.export`, follows a delta log, and answers the requests of ``monolith serve``,
which is in `server`. `layout` builds the inputs of a graph from requests. `shards` serves and looks up rows that are
divided among processes, `push` sends them to receivers. Messages are those of TensorFlow Serving, so that its clients
need no change: `tensor_messages.py`.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__, {"ExportOptions": "ExportConfig", "RemoteRows": "ShardedRows"})
