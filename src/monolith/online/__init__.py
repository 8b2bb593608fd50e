"""Online: turns user events into training examples, and brings trained rows to serving processes.

May import everything below `monolith.launch`. `monolith.deltalog.publish` writes the changes of a run to a delta log,
`follower.py` keeps the tables of another process up to date from it, `monolith.online.joiner` joins impressions and
actions to examples, and `monolith.validation` measures what freshness is worth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith._deprecated import former_names as _former_names
from monolith.deltalog.follow.follower import Follower, Staleness
from monolith.deltalog.publish import DeltaPublisher, PublisherConfig
from monolith.hooks.publish import DeltaPublishHook

__all__ = ["DeltaPublishHook", "DeltaPublisher", "Follower", "PublisherConfig", "Staleness"]

if not TYPE_CHECKING:  # type checkers accept only the current names
    __getattr__ = _former_names(__name__, {"PublisherOptions": "PublisherConfig"})
