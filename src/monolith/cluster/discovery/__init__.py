"""Service discovery: one interface; one file per service, and `plain_discovery` for those without one.

Read `service_discovery` first. Services that need a package of their own import it when they are constructed.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
