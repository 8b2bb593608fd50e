"""Publishing: writes the changed rows of a run to its delta log, wherever the rows are stored.

Below parameter servers and ranks, which publish their own buckets. `publisher.py` has the publishing thread,
`part_publisher.py` writes one part of a log, `monolith.hooks.publish` attaches both to a session;
`monolith.deltalog.follow` has the readers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith._deprecated import former_names as _former_names
from monolith.deltalog.publish.publisher import DeltaPublisher, PublisherConfig

__all__ = ["DeltaPublisher", "PublisherConfig"]

if not TYPE_CHECKING:  # type checkers accept only the current names
    __getattr__ = _former_names(
        __name__,
        {"DeltaPublishHook": "monolith.hooks.DeltaPublishHook", "PublisherOptions": "PublisherConfig"},
    )
