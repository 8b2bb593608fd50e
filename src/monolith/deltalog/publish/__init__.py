"""Publishing: writes the changed rows of a run to its delta log, wherever the rows are stored.

Below parameter servers and ranks, which publish their own buckets. `publisher.py` has the publishing thread,
`part_publisher.py` writes one part of a log, `publish_hook.py` attaches both to a session; `monolith.online` has the
readers.
"""

from __future__ import annotations

from monolith.deltalog.publish.publisher import DeltaPublisher, PublisherOptions

__all__ = ["DeltaPublisher", "PublisherOptions"]
