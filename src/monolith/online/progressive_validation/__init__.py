"""Progressive validation: what a model is worth in service, by predicting each example before it is learned from.

May import: `train` and what is below. Read `run.py` first; `serving_copy.py` is what predicts, `sync_rule.py`
says when it takes over what was trained, `windows.py` has the figures, `page.py` draws them. `ranker.py` is a click
model for whoever has no task yet, and `traffic.py` has examples for it.
"""

from __future__ import annotations

from monolith.online.progressive_validation.hashed_ids import HashedIds
from monolith.online.progressive_validation.outcome import CopyOutcome, Outcome
from monolith.online.progressive_validation.page import write_page
from monolith.online.progressive_validation.ranker import Ranker
from monolith.online.progressive_validation.run import ValidationOptions, validate
from monolith.online.progressive_validation.sync_rule import SyncRule
from monolith.online.progressive_validation.traffic import Traffic, clicks, criteo, movielens
from monolith.online.progressive_validation.windows import Scores, Window

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
