"""Summaries for TensorBoard: numbers, architecture weights and feature insight, and the event files that carry them.

Needs ``monolith-torch[tensorboard]``, imported on first use; TensorFlow is never loaded. Read `head` first.
"""

from __future__ import annotations

from monolith.observe.summaries.head import (
    KDATA,
    KMETA,
    KTYPE,
    MONOLITH_FI_DATA,
    MONOLITH_NAS_DATA,
    PLUGIN_NAME,
    SummaryType,
    prepare_head,
)
from monolith.observe.summaries.kinds import (
    create_summary_metadata,
    feature_insight_data,
    histograms,
    nas_data,
    nas_weight_json,
    scalars,
)
from monolith.observe.summaries.summary_writer import SummaryWriter

__all__ = [
    "KDATA",
    "KMETA",
    "KTYPE",
    "MONOLITH_FI_DATA",
    "MONOLITH_NAS_DATA",
    "PLUGIN_NAME",
    "SummaryType",
    "SummaryWriter",
    "create_summary_metadata",
    "feature_insight_data",
    "histograms",
    "nas_data",
    "nas_weight_json",
    "prepare_head",
    "scalars",
]
