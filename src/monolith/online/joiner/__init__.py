"""The joiner: impressions and actions in, numbered examples out, each exactly once.

`machine` decides, `state` stores undecided entries, `partition` connects both to inputs and output, and `service` runs
partitions in threads. Read `machine` first.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__, {"JoinRules": "JoinRuleConfig", "Joined": "JoinedExample"})
