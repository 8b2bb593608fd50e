"""The controller service: an operator pauses, resumes and saves a running training, and queries its progress.

`ServerHook` serves it from the chief's session, `ControllerClient` and ``monolith control`` call it. Needs grpcio,
which is imported when a server or client is created. Read `service` first.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
