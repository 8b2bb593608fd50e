"""Numbered examples as training reads them while they come: each once, whatever stalls, floods, rewinds or dies.

`dataset.py` is the dataset, `admission.py` decides what becomes of an example, and `files.py` and `topics.py` fetch
what a joiner has written. `watching.py` shows how far a run is.
"""

from __future__ import annotations

from monolith.online.stream.config import StreamConfig
from monolith.online.stream.counts import StreamCounts
from monolith.online.stream.dataset import ExampleStream
from monolith.online.stream.watching import StreamHook

__all__ = ["ExampleStream", "StreamConfig", "StreamCounts", "StreamHook"]
