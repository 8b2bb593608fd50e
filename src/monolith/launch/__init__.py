"""Starts the processes of a job: on this machine, on Ray, or as a manifest for a scheduler.

Every launcher starts from a `LaunchPlan`, and every role is the command of its name, ``monolith ps`` or
``monolith worker``. Read `plan` first, then `local`. May import everything below the command line.
"""

from __future__ import annotations

from monolith.launch.local import LocalLauncher
from monolith.launch.plan import LaunchPlan
from monolith.launch.resources import Resources
from monolith.launch.restarts import RestartPolicy
from monolith.launch.role import Role
from monolith.launch.this_machine import local_job

__all__ = ["LaunchPlan", "LocalLauncher", "Resources", "RestartPolicy", "Role", "local_job"]
