"""Skew: what a server answered against what the model answers when it is asked the same again.

Read `replay.py` first. `models.py` finds the model of the version that a logged request names, `batches.py` makes of
the request what that model is asked with, `report.py` counts. The command is ``monolith skew``.
"""

from __future__ import annotations

from monolith.serving.skew.models import ReplayModels
from monolith.serving.skew.replay import measure_skew
from monolith.serving.skew.report import Difference, SkewReport, VersionSkew

__all__ = ["Difference", "ReplayModels", "SkewReport", "VersionSkew", "measure_skew"]
