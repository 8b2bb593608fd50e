"""Export: a model without its training code, as graph, weights, rows and signatures.

May import `monolith.checkpoint`, `monolith.deltalog` and lower packages; does not depend on
tasks. `monolith.serving.export` is its public API. The files are those of ``docs/formats/export.md``.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
