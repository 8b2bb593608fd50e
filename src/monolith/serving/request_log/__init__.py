"""The request log: requests and answers, as impressions for the joiner and as input of ``monolith skew``.

Read `log.py` first: the front ends submit answered requests, and a background thread writes them; no request waits for
it. `records.py` makes the records of a request, `sinks.py` writes them to files or a topic, `reading.py` reads them. It
does not depend on the server. Importing it opens no resources.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
