"""Metrics of streams: fed batch by batch, read at any time, merged across workers.

May import: torch. Read `metric.py` first: all have ``update``, ``compute``, ``merge``, ``reset``, ``state`` and
``load_state``, take sample weights, and reject predictions that are not finite. `docs/how-to/metrics.md` compares
them.
"""

from __future__ import annotations

from monolith.metrics.auc import BinnedAUC, ExactAUC, GroupAUCs, GroupedAUC
from monolith.metrics.calibration_error import CalibrationCurve, CalibrationError
from monolith.metrics.mean import Calibration, LogLoss, MeanSquaredError, NormalizedEntropy
from monolith.metrics.metric import Metric

__all__ = [
    "BinnedAUC",
    "Calibration",
    "CalibrationCurve",
    "CalibrationError",
    "ExactAUC",
    "GroupAUCs",
    "GroupedAUC",
    "LogLoss",
    "MeanSquaredError",
    "Metric",
    "NormalizedEntropy",
]
