"""How a job is watched: metrics, logs, summaries, stacks on a signal.

Imports nothing above `monolith.errors`. Importing `monolith.observe.signals` installs a handler for SIGUSR1, so nothing
else imports it; Prometheus and TensorBoard are imported on first use. Read `heart_beat` first.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__, {"Reading": "MetricSample"})
