"""Skew: compares the answers of a server with those of the model for the same requests.

Read `replay.py` first. `models.py` finds the model of the version of a logged request, `batches.py` converts the
request to a batch, `report.py` counts differences. The command is ``monolith skew``.
"""

from __future__ import annotations

from monolith.serving.skew.models import ReplayModels
from monolith.serving.skew.replay import measure_skew
from monolith.serving.skew.report import Difference, SkewReport, VersionSkew

__all__ = ["Difference", "ReplayModels", "SkewReport", "VersionSkew", "measure_skew"]
