"""Starts the processes of a job: on this machine, on Ray, or as a manifest for a scheduler.

Every launcher starts from a `LaunchPlan`, and every role is the command of its name, ``monolith ps`` or
``monolith worker``. Read `plan` first, then `local`. May import everything below the command line.

Names are imported on first access: processes that only forward messages do not need torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from monolith._deprecated import former_names as _former_names

if TYPE_CHECKING:
    from monolith.launch.local import LocalLauncher, local_job
    from monolith.launch.plan import LaunchPlan
    from monolith.launch.ray_launcher import RayLauncher
    from monolith.launch.role import Resources, RestartConfig, Role

_HOMES = {
    "LaunchPlan": "plan",
    "LocalLauncher": "local",
    "RayLauncher": "ray_launcher",
    "Resources": "role",
    "RestartConfig": "role",
    "Role": "role",
    "local_job": "local",
}

__all__ = ["LaunchPlan", "LocalLauncher", "RayLauncher", "Resources", "RestartConfig", "Role", "local_job"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


if not TYPE_CHECKING:  # type checkers accept only the current names
    __getattr__ = _former_names(__name__, {"RestartPolicy": "RestartConfig"}, __getattr__)
