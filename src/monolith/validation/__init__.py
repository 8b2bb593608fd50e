"""Progressive validation: measures a model as served, by predicting each example before training on it.

May import: `train` and what is below. Read `run.py` first; `serving_copy.py` predicts, `sync_rule.py` decides when it
loads trained rows and weights, `windows.py` computes the metrics, `page.py` plots them. `ranker.py` is a click model
for users without a task, and `traffic.py` provides examples for it.
"""

from __future__ import annotations

from monolith.validation.outcome import CopyOutcome, Outcome
from monolith.validation.page import write_page
from monolith.validation.ranker import Ranker
from monolith.validation.run import ValidationOptions, validate
from monolith.validation.sync_rule import SyncRule
from monolith.validation.traffic import HashedIds, Traffic, clicks, criteo, movielens
from monolith.validation.windows import Scores, Window

__all__ = [
    "CopyOutcome",
    "HashedIds",
    "Outcome",
    "Ranker",
    "Scores",
    "SyncRule",
    "Traffic",
    "ValidationOptions",
    "Window",
    "clicks",
    "criteo",
    "movielens",
    "validate",
    "write_page",
]
