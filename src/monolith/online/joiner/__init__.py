"""The joiner: impressions and actions in, numbered examples out, each exactly once.

`machine` decides, `state` stores undecided entries, `partition` connects both to inputs and output, and `service` runs
partitions in threads. Read `machine` first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith._deprecated import former_names as _former_names
from monolith.online.joiner.events import action_record, impression_record
from monolith.online.joiner.machine import JoinCounts, JoinedExample, JoinMachine
from monolith.online.joiner.rules import JoinRuleConfig
from monolith.online.joiner.service import Joiner, JoinerConfig

__all__ = [
    "JoinCounts",
    "JoinMachine",
    "JoinRuleConfig",
    "JoinedExample",
    "Joiner",
    "JoinerConfig",
    "action_record",
    "impression_record",
]

if not TYPE_CHECKING:  # type checkers accept only the current names
    __getattr__ = _former_names(__name__, {"JoinRules": "JoinRuleConfig", "Joined": "JoinedExample"})
