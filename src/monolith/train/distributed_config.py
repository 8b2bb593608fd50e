"""`DistributedCpuTrainingConfig`: the same over several processes."""

from __future__ import annotations

from monolith.train.cpu_training_config import CpuTrainingConfig
from monolith.train.flat_config import flat_config

__all__ = ["DistributedCpuTrainingConfig"]


@flat_config
class DistributedCpuTrainingConfig(CpuTrainingConfig):
    """How a task is trained by the processes of a job."""

    model_dir: str = ""
    """Where checkpoints are."""
    tensorboard_log_path: str = ""
    """Another folder for summaries."""
    intra_op_parallelism_threads: int = 8
    """Threads of one dense operation."""
    inter_op_parallelism_threads: int = 16
    """Dense operations at a time."""
    num_extra_ps: int = 0
    """Servers beyond num_ps, from which the slowest are dropped."""
    num_redundant_ps: int = 0
    """Servers beyond need, so that the job begins when enough are there."""
    uuid: str = ""
    """Name of the run, under which its processes find each other."""
    operation_timeout_in_ms: int = -1
    """Longest wait of one operation; below 0: none."""
    session_creation_timeout_secs: int = 7200
    """How long a worker waits for a session."""
    max_retry_times: int = 0
    """Restarts after a change of the cluster."""
    retry_wait_in_secs: int = 30
    """Pause before each of them."""
    fountain_zk_host: str = ""
    """Where the external data service registers."""
    fountain_model_name: str = ""
    """The model's name there."""
    dc_aware: bool = False
    """Find replicas by data centre."""
