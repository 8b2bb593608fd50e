"""Doubles and small configs for tests, of this project and of users.

May import anything; nothing inside the package imports it. Read `reference_store.py` first: a store made of
dictionaries, which defines in plain Python the behaviour of every engine. `test_utils.py` and `distributed_binary.py`
exist for parity with the test helpers of ByteDance Monolith.
"""

from __future__ import annotations

from monolith._doors import open_door as _open_door

__getattr__, __dir__, __all__ = _open_door(__name__)
