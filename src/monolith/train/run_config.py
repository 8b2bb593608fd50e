"""`RunConfig`: the few options that most users set, and how they become a `RunnerConfig`."""

from __future__ import annotations

from monolith.cluster.discovery import ServiceDiscoveryType
from monolith.train.flat_config import FlatConfig, Origin, flat_config
from monolith.train.runner_config import RunnerConfig

__all__ = ["RunConfig"]

_LOCAL_NAMES = frozenset({"enable_parameter_sync", "enable_local_profiling"})
"""Options that a `RunnerConfig` has under another name."""


@flat_config
class RunConfig(FlatConfig):
    """The options of `Estimator`. What they mean stands at `RunnerConfig`."""

    is_local: bool = False
    num_ps: int = 0
    num_workers: int = 1
    chief_timeout_secs: int = 1800
    operation_timeout_in_ms: int = -1
    session_creation_timeout_secs: int = 7200
    enable_fused_layout: bool = False
    enable_model_dump: bool = False
    partial_recovery: bool = False
    max_retry_times: int = 6
    retry_wait_in_secs: int = 5
    bzid: str | None = None
    base_name: str | None = None
    ps_replica_num: int | None = None
    enable_parameter_sync: bool = False
    model_dir: str = ""
    restore_dir: str | None = None
    restore_ckpt: str | None = None
    save_checkpoints_secs: int | None = None
    save_checkpoints_steps: int | None = None
    max_rpc_deadline_millis: int = 30000
    dense_only_save_checkpoints_secs: int | None = None
    dense_only_save_checkpoints_steps: int | None = None
    checkpoints_max_to_keep: int = 10
    warmup_file: str = "./warmup_file"
    enable_local_profiling: bool = False
    use_native_multi_hash_table: bool | None = None
    clear_nn: bool = False
    continue_training: bool = False
    reload_alias_map: dict[str, str] | None = None
    enable_alias_map_auto_gen: bool | None = None
    kafka_topics: str | None = None
    kafka_group_id: str | None = None
    kafka_servers: str | None = None
    disable_native_metrics: bool = True
    save_summary_steps: int = 100
    log_step_count_steps: int = 100

    def to_runner_config(self, runner: RunnerConfig | None = None) -> RunnerConfig:
        """A `RunnerConfig` with what was set here; what only has its default here overrides nothing there.

        Discovery by Consul becomes ZooKeeper. Rows are read one batch ahead and gradients applied one step later
        unless GPU training is asked for: that is how jobs started through this config always ran.

        Args:
            runner: With flags and the environment already in it; None: a new one.
        """
        made = RunnerConfig() if runner is None else runner
        own = {name: getattr(self, name) for name in self.option_names() if self.is_set(name)}
        made.update({name: value for name, value in own.items() if name not in _LOCAL_NAMES}, Origin.CODE)
        if made.discovery_type is ServiceDiscoveryType.CONSUL:
            made.discovery_type = ServiceDiscoveryType.ZK
        if not made.enable_gpu_training:
            made.embedding_prefetch_capacity = max(1, made.embedding_prefetch_capacity)
            made.enable_embedding_postpush = True
        if self.enable_parameter_sync:
            made.enable_realtime_training = True
        if self.enable_local_profiling and made.profile_some_steps_from is None:
            made.profile_some_steps_from = 0
        return made
