"""Publishing: from the rows that a run changes to its delta log, wherever the rows are.

Below parameter servers and ranks, which publish their own buckets. `publisher.py` has the clock, `part_publisher.py`
one part of a log, `publish_hook.py` what a session attaches; `monolith.online` has who reads it.
"""

from __future__ import annotations

from monolith.publishing.publish_hook import DeltaPublishHook
from monolith.publishing.publisher import DeltaPublisher, PublisherOptions

__all__ = ["DeltaPublishHook", "DeltaPublisher", "PublisherOptions"]
