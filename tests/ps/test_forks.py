"""A process that has servers forks, as the loaders of training data do, and its children live."""

from __future__ import annotations

import subprocess
import sys

import pytest

from monolith import environment

FORKS = """
import os, time
from monolith.ps import PsStore
from monolith.tables import Segment, TableConfig
from monolith.testing import create_test_ps_cluster

with create_test_ps_cluster(2) as (_, config), config.connect() as cluster:
    store = PsStore({"user": TableConfig([Segment(2)])}, servers=cluster)
    store.join(0)
    died = 0
    for _ in range(100):
        store.stats()
        child = os.fork()
        if child == 0:
            time.sleep(0.04)  # threads that a library starts in a child have their time
            os._exit(0)
        died += os.waitpid(child, 0)[1] != 0
    print("died", died, "rows", store.stats().rows)
    store.close()
"""


@pytest.mark.slow
def test_children_of_a_process_that_has_servers_live() -> None:
    without = {name: value for name, value in environment.starting_with("").items() if not name.startswith("GRPC_")}
    done = subprocess.run(
        [sys.executable, "-c", FORKS], env=without, check=False, capture_output=True, text=True, timeout=240
    )
    assert done.stdout == "died 0 rows 0\n", done.stderr[-2000:]
