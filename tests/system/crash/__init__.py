"""Kills training runs and checks whether anything was lost: `scripts/crash-test`, and a shorter version in the tests.

Read `trial.py` first: a run is started, killed with SIGKILL at a random time and restarted, until it ends; then it is
checked. `tasks.py` has the tasks and their checks, `child.py` the processes, `fingerprint.py` the comparison of two
states bit for bit.

`worker_trial.py` does the same to workers of parameter servers; `counting.py` has their task. `cluster_trial.py` does
it to complete jobs; `cluster_task.py` has their task, and `network.py` the network that is cut between their processes.
`rank_trial.py` does it to the ranks of a synchronous run; `rank_program.py` is the program for torchrun.
`online_trial.py` does it to a tree of producer, joiners, trainer and followers or servers: `online_tree.py` has its
processes, `online_events.py` their events, `online_judgement.py` the final checks. `online_servers.py` and
`online_client.py` are the servers and their clients, `online_answers.py` has the rules for every answer, and
`online_history.py` the content of the log over time.
"""

from __future__ import annotations

from system.crash.cluster_trial import (
    CLUSTER_SCENARIOS,
    ClusterFault,
    ClusterScenario,
    ClusterTrial,
    run_cluster_trial,
)
from system.crash.counting import CONFIGS, CountingJob
from system.crash.fingerprint import fingerprint
from system.crash.online_trial import OnlineKill, OnlineTrial, run_online_trial
from system.crash.rank_trial import RankFault, RankScenario, RankTrial, run_rank_trial
from system.crash.scenarios import SCENARIOS, Scenario
from system.crash.trial import Kill, Trial, run_trials
from system.crash.worker_trial import Fault, WorkerTrial, run_worker_trial

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
