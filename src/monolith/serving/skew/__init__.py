"""Skew: compares the answers of a server with those of the model for the same requests.

Read `replay.py` first: it converts a logged request to a batch and counts differences. `models.py` finds the model of
the version of the request. The command is ``monolith skew``.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
