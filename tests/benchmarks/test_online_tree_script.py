"""benchmarks/online_tree.py runs a tree, at a speed at which its figures mean nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import online_tree
from programs import Programs


@pytest.mark.slow
@pytest.mark.parametrize("readers", ["followers", "servers"])
def test_a_quick_run_reports_every_figure(project_root: Path, tmp_path: Path, programs: Programs, readers: str) -> None:
    arguments = ["--quick", "--json", "--directory", str(tmp_path), *(["--serve"] if readers == "servers" else [])]
    done = programs.run(Path("benchmarks/online_tree.py"), *arguments, folder=project_root)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    for name in ("clicked", "not_clicked"):
        assert 0.0 <= told[name]["p50"] <= told[name]["p99"] <= told[name]["longest"]
        assert told[name]["events"] > 20
    assert told["readers"] == readers
    assert set(told["staleness"]) == ({"follower-0", "follower-1"} if readers == "followers" else set())


def test_the_table_has_the_staleness_of_each_follower() -> None:
    figures = {"p50": 0.1, "p99": 0.2, "longest": 0.3, "events": 21}
    found = {"clicked": figures, "not_clicked": figures, "staleness": {"follower-0": [0.4, 0.5, 9.0]}}
    table = online_tree._table({**found, "events_per_second": 10.0, "cores": 2, "readers": "followers"})
    assert "| the oldest event of an increment | follower-0 | 0.400 s | 0.500 s | - | - |" in table
