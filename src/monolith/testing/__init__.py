"""Doubles and small configs for tests, of this project and of users.

May import anything; nothing inside the package imports it. Read `reference_store.py` first: a store made of
dictionaries, which defines in plain Python the behaviour of every engine. `test_utils.py` and `distributed_binary.py`
exist for parity with the test helpers of ByteDance Monolith.
"""

from __future__ import annotations

from monolith.testing.example_task import ExampleTask, NumberedBatches
from monolith.testing.fake_clock import FakeClock
from monolith.testing.ps_cluster import create_test_ps_cluster
from monolith.testing.reference_store import ReferenceStore
from monolith.testing.small_model import SmallModel
from monolith.testing.step_loop import StepLoop
from monolith.testing.test_utils import generate_test_hash_table_config, get_test_tmp_dir, profile_it

__all__ = [
    "ExampleTask",
    "FakeClock",
    "NumberedBatches",
    "ReferenceStore",
    "SmallModel",
    "StepLoop",
    "create_test_ps_cluster",
    "generate_test_hash_table_config",
    "get_test_tmp_dir",
    "profile_it",
]
