"""Decides which version of a model answers: labels, canary, shadow, rollback, and the gate.

Read `promotion.py` first: it executes commands. `version_keeper.py` loads and frees versions of one model, which are
served by a `ModelRegistry`; `state.py` stores the decisions of operators; `gate.py` checks exports and, with
`DenseGate` of `loaded_model.py`, weights of the delta log. The server splits the requests: see `registry.py` and
`request_core.py` there.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__, {"Gate": "PromotionGate"})
