"""Synchronous runs count every example once, however their ranks are killed, stopped and started in other numbers.

``scripts/crash-test --ranks 2 --kills 100`` does more of the same.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from system.crash import RankScenario, run_rank_trial
from system.crash.rank_trial import RankFaultKind

RUNS: dict[str, tuple[RankFaultKind, ...]] = {
    "killed once": ("kill in save",),
    "killed while read ahead": ("kill in save", "kill", "kill", "kill in save"),
    "in other numbers": ("resize", "kill", "resize"),
    "stopped": ("pause", "hang"),
}
PIPELINED = {"embedding_prefetch_capacity": 1, "enable_async_optimize": True}


@pytest.mark.usefixtures("forked_starts")  # of torchrun and its ranks
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if len(kinds) == 1 else pytest.mark.slow) for name, kinds in RUNS.items()]
)
def test_a_run_of_ranks_counts_every_example_once(tmp_path: Path, name: str) -> None:
    kinds = RUNS[name]
    options = PIPELINED if "ahead" in name else {}
    scenario = RankScenario(kinds=kinds, options=options, timeout_seconds=10.0)
    trial = run_rank_trial(scenario, num_faults=len(kinds), seed=5, folder=tmp_path)
    assert trial.problems == []
    assert [fault.kind for fault in trial.faults] == list(kinds)
    assert all(fault.recovery_seconds > 0 for fault in trial.faults)
    if name == "in other numbers":
        assert trial.facts["sizes"] == [2, 3, 1]
