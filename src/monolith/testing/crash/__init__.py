"""Kills training runs and looks whether anything was lost: `scripts/crash-test`, and a shorter version in the tests.

Read `trial.py` first: a run is started, killed with SIGKILL at a random moment and started again, until it ends; then
it is judged. `tasks.py` has what is trained and how it is judged, `child.py` the processes, `fingerprint.py` the
comparison of two states bit for bit.

`worker_trial.py` does the same to workers of parameter servers: `counting.py` has what they count. `cluster_trial.py`
does it to whole jobs, `cluster_task.py` has what those count, and `network.py` the network that is cut between them.
`rank_trial.py` does it to the ranks of a synchronous run; `rank_program.py` is what torchrun starts. `online_trial.py`
does it to a tree of producer, joiners, trainer and followers or servers: `online_tree.py` has its processes,
`online_events.py` what they pass on, `online_judgement.py` what must come of it. `online_servers.py` and
`online_client.py` are the servers and who asks them, `online_answers.py` says what must hold of every answer, and
`online_history.py` what the log had said by then.
"""

from __future__ import annotations

from monolith.testing.crash.cluster_trial import (
    CLUSTER_SCENARIOS,
    ClusterFault,
    ClusterScenario,
    ClusterTrial,
    run_cluster_trial,
)
from monolith.testing.crash.counting import CONFIGS, CountingJob
from monolith.testing.crash.fingerprint import fingerprint
from monolith.testing.crash.online_trial import OnlineKill, OnlineTrial, run_online_trial
from monolith.testing.crash.rank_trial import RankFault, RankScenario, RankTrial, run_rank_trial
from monolith.testing.crash.scenarios import SCENARIOS, Scenario
from monolith.testing.crash.trial import Kill, Trial, run_trials
from monolith.testing.crash.worker_trial import Fault, WorkerTrial, run_worker_trial

__all__ = [
    "CLUSTER_SCENARIOS",
    "CONFIGS",
    "ClusterFault",
    "ClusterScenario",
    "ClusterTrial",
    "CountingJob",
    "Fault",
    "Kill",
    "OnlineKill",
    "OnlineTrial",
    "RankFault",
    "RankScenario",
    "RankTrial",
    "SCENARIOS",
    "Scenario",
    "Trial",
    "WorkerTrial",
    "fingerprint",
    "run_cluster_trial",
    "run_online_trial",
    "run_rank_trial",
    "run_trials",
    "run_worker_trial",
]
