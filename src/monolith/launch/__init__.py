"""Starts the processes of a job: on this machine, on Ray, or as a manifest for a scheduler.

Every launcher starts from a `LaunchPlan`, and every role is the command of its name, ``monolith ps`` or
``monolith worker``. Read `plan` first, then `local`. May import everything below the command line.

Names are imported on first access: processes that only forward messages do not need torch.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__, {"RestartPolicy": "RestartConfig"})
