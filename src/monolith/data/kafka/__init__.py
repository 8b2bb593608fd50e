"""Topics of Kafka as a dataset whose position holds every offset. Needs the extra ``kafka``.

Read `dataset` first, then `fetching` (each message once, up to the end, in blocks), `reading` and `position`. May
import what `monolith.data` may.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
