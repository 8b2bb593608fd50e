"""Skew: compares the answers of a server with those of the model for the same requests.

Read `replay.py` first: it converts a logged request to a batch and counts differences. `models.py` finds the model of
the version of the request. The command is ``monolith skew``.
"""

from __future__ import annotations

from monolith.serving.skew.models import ReplayModels
from monolith.serving.skew.replay import Difference, SkewReport, VersionSkew, measure_skew

__all__ = ["Difference", "ReplayModels", "SkewReport", "VersionSkew", "measure_skew"]
