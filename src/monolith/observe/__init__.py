"""How a job is watched: metrics, logs, summaries, stacks on a signal.

Imports nothing above `monolith.errors`. Importing `monolith.observe.signals` installs a handler for SIGUSR1, so nothing
else imports it.
"""

from __future__ import annotations

__all__: list[str] = []
