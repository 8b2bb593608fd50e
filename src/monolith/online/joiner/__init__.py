"""The joiner: impressions and actions in, numbered examples out, each exactly once.

`machine` decides, `state` stores undecided entries, `partition` connects both to inputs and output, and `service` runs
partitions in threads. Read `machine` first.
"""

from __future__ import annotations

from monolith.online.joiner.counts import JoinCounts
from monolith.online.joiner.events import action_record, impression_record
from monolith.online.joiner.machine import Joined, JoinMachine
from monolith.online.joiner.rules import JoinRules
from monolith.online.joiner.service import Joiner, JoinerConfig

__all__ = [
    "JoinCounts",
    "JoinMachine",
    "JoinRules",
    "Joined",
    "Joiner",
    "JoinerConfig",
    "action_record",
    "impression_record",
]
