"""A job as a manifest for a scheduler, with instructions for its use.

Nothing here connects to a cluster: a manifest is a text. Read `k8s` first.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
