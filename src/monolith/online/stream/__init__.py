"""Reads numbered examples for training as they arrive: each exactly once, across stalls, bursts, rewinds and crashes.

`dataset.py` is the dataset, `admission.py` decides whether an example is trained, and `files.py` and `topics.py` fetch
the output of a joiner. `watching.py` reports the progress of a run.
"""

from __future__ import annotations

from monolith.online.stream.admission import StreamCounts
from monolith.online.stream.config import StreamConfig
from monolith.online.stream.dataset import ExampleStream
from monolith.online.stream.watching import StreamHook

__all__ = ["ExampleStream", "StreamConfig", "StreamCounts", "StreamHook"]
