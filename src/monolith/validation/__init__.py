"""Progressive validation: measures a model as served, by predicting each example before training on it.

May import: `train` and what is below. Read `run.py` first; `serving_copy.py` predicts and decides when it loads trained
rows and weights, `outcome.py` computes the metrics and plots them. `traffic.py` has a click model for users without a
task, and examples for it.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(
    __name__, {"Outcome": "ValidationOutcome", "ValidationOptions": "ValidationConfig"}
)
