"""Doubles and small configs for tests, of this project and of users.

May import anything; nothing inside the package imports it. Read `reference_store.py` first: a store made of
dictionaries, which defines in plain Python the behaviour of every engine.
"""

from __future__ import annotations

from monolith.testing.example_task import ExampleTask, NumberedBatches
from monolith.testing.fake_clock import FakeClock
from monolith.testing.profiling import profile_it
from monolith.testing.ps_cluster import create_test_ps_cluster
from monolith.testing.reference_store import ReferenceStore
from monolith.testing.small_model import SmallModel
from monolith.testing.step_loop import StepLoop
from monolith.testing.table_configs import generate_test_hash_table_config
from monolith.testing.temporary_folder import get_test_tmp_dir

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
