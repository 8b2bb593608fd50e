"""Publishing: writes the changed rows of a run to its delta log, wherever the rows are stored.

Below parameter servers and ranks, which publish their own buckets. `publisher.py` has the publishing thread,
`local_publisher.py` writes one part of a log, `monolith.hooks.publish` attaches both to a session;
`monolith.deltalog.follow` has the readers.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(
    __name__,
    {
        "DeltaPublishHook": "monolith.hooks.DeltaPublishHook",
        "PublisherOptions": "PublisherConfig",
    },
)
