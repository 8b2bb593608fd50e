"""Reads numbered examples for training as they arrive: each exactly once, across stalls, bursts, rewinds and crashes.

`dataset.py` is the dataset, `admission.py` decides whether an example is trained, and `files.py` and `topics.py` fetch
the output of a joiner.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
