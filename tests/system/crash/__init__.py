"""Kills training runs and checks whether anything was lost: `scripts/crash-test`, and a shorter version in the tests.

Read `trial.py` first: its loop draws a fault, injects it, waits for progress and judges in the end. Every topology has
its processes, faults and judgement in a file of its own:

- `single_trial.py`: one process, killed with SIGKILL and resumed until it ends. `tasks.py` has the tasks and their
  checks, `fingerprint.py` the comparison of two states bit for bit.
- `worker_trial.py`: workers of parameter servers.
- `cluster_trial.py`: complete jobs. `cluster_task.py` has their task, `network.py` the network that is cut.
- `rank_trial.py`: ranks of a synchronous run. `rank_program.py` is the program for torchrun.
- `online_trial.py`: a tree of producer, joiners, trainer and followers or servers. `online_tree.py` has its processes,
  `online_events.py` their events, `online_client.py` the clients of servers, `online_answers.py` the rules for every
  answer. `online_live.py` runs a tree in real time without faults.

`processes.py` has the processes themselves.
"""

from __future__ import annotations

from system.crash.cluster_trial import CLUSTER_SCENARIOS, ClusterScenario, run_cluster_trial
from system.crash.fingerprint import fingerprint
from system.crash.online_trial import OnlineScenario, run_online_trial
from system.crash.rank_trial import RankScenario, run_rank_trial
from system.crash.single_trial import SCENARIOS, Scenario, run_trials
from system.crash.trial import Fault, Trial
from system.crash.worker_trial import CONFIGS, CountingJob, run_worker_trial

__all__ = [
    "CLUSTER_SCENARIOS",
    "CONFIGS",
    "ClusterScenario",
    "CountingJob",
    "Fault",
    "OnlineScenario",
    "RankScenario",
    "SCENARIOS",
    "Scenario",
    "Trial",
    "fingerprint",
    "run_cluster_trial",
    "run_online_trial",
    "run_rank_trial",
    "run_trials",
    "run_worker_trial",
]
