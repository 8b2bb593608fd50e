"""Progressive validation: measures a model as served, by predicting each example before training on it.

May import: `train` and what is below. Read `run.py` first; `serving_copy.py` predicts and decides when it loads trained
rows and weights, `outcome.py` computes the metrics, `page.py` plots them. `ranker.py` is a click model for users
without a task, and `traffic.py` provides examples for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith._deprecated import former_names as _former_names
from monolith.validation.outcome import CopyOutcome, Scores, ValidationOutcome, Window
from monolith.validation.page import write_page
from monolith.validation.ranker import Ranker
from monolith.validation.run import ValidationConfig, validate
from monolith.validation.serving_copy import SyncRule
from monolith.validation.traffic import HashedIds, Traffic, clicks, criteo, movielens

__all__ = [
    "CopyOutcome",
    "HashedIds",
    "Ranker",
    "Scores",
    "SyncRule",
    "Traffic",
    "ValidationConfig",
    "ValidationOutcome",
    "Window",
    "clicks",
    "criteo",
    "movielens",
    "validate",
    "write_page",
]

if not TYPE_CHECKING:  # type checkers accept only the current names
    __getattr__ = _former_names(__name__, {"Outcome": "ValidationOutcome", "ValidationOptions": "ValidationConfig"})
