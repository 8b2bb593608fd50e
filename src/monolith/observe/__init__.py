"""How a job is watched: metrics, logs, summaries, stacks on a signal.

Imports nothing above `monolith.errors`. Importing `monolith.observe.signals` installs a handler for SIGUSR1, so nothing
else imports it; Prometheus and TensorBoard are imported on first use. Read `heart_beat` first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith._deprecated import former_names as _former_names
from monolith.observe.heart_beat import HeartBeat, MetricClient
from monolith.observe.logs import LoggingSetup, configure_logging
from monolith.observe.metric_names import MetricKind, get_metric_prefix, set_metric_prefix, use_metric_name
from monolith.observe.metric_recorder import MetricRecorder, MetricSample, TimerReading, process_recorder
from monolith.observe.prometheus import MetricsEndpoint, PrometheusCollector

__all__ = [
    "HeartBeat",
    "LoggingSetup",
    "MetricClient",
    "MetricKind",
    "MetricRecorder",
    "MetricSample",
    "MetricsEndpoint",
    "PrometheusCollector",
    "TimerReading",
    "configure_logging",
    "get_metric_prefix",
    "process_recorder",
    "set_metric_prefix",
    "use_metric_name",
]

if not TYPE_CHECKING:  # type checkers accept only the current names
    __getattr__ = _former_names(__name__, {"Reading": "MetricSample"})
