"""`RunConfig`: the few options that most users set, and how they become a `RunnerConfig`."""

# Not postponed: the annotations of options are read.
from typing import Annotated

from monolith.cluster.discovery import ServiceDiscoveryType
from monolith.train.compat.effects import ReadBy
from monolith.train.compat.flat_config import FlatConfig, Origin, flat_config
from monolith.train.compat.options import RunnerConfig


@flat_config
class RunConfig(FlatConfig):
    """The options of `Estimator`. `RunnerConfig` documents their meaning and effect.

    Three of them have other defaults here, which never take effect by themselves.
    """

    is_local: bool = RunnerConfig.is_local
    num_ps: int = RunnerConfig.num_ps
    num_workers: int = RunnerConfig.num_workers
    chief_timeout_secs: int = RunnerConfig.chief_timeout_secs
    operation_timeout_in_ms: int = RunnerConfig.operation_timeout_in_ms
    session_creation_timeout_secs: int = RunnerConfig.session_creation_timeout_secs
    enable_fused_layout: bool = RunnerConfig.enable_fused_layout
    enable_model_dump: bool = RunnerConfig.enable_model_dump
    partial_recovery: bool = False
    max_retry_times: int = 6
    retry_wait_in_secs: int = 5
    bzid: str | None = RunnerConfig.bzid
    base_name: str | None = RunnerConfig.base_name
    ps_replica_num: int | None = RunnerConfig.ps_replica_num
    enable_parameter_sync: Annotated[bool, ReadBy("`to_runner_config`: it sets `enable_realtime_training`")] = False
    """Send changes to serving."""
    model_dir: str = RunnerConfig.model_dir
    restore_dir: str | None = RunnerConfig.restore_dir
    restore_ckpt: str | None = RunnerConfig.restore_ckpt
    save_checkpoints_secs: int | None = RunnerConfig.save_checkpoints_secs
    save_checkpoints_steps: int | None = RunnerConfig.save_checkpoints_steps
    max_rpc_deadline_millis: int = RunnerConfig.max_rpc_deadline_millis
    dense_only_save_checkpoints_secs: int | None = RunnerConfig.dense_only_save_checkpoints_secs
    dense_only_save_checkpoints_steps: int | None = RunnerConfig.dense_only_save_checkpoints_steps
    checkpoints_max_to_keep: int = RunnerConfig.checkpoints_max_to_keep
    warmup_file: str = RunnerConfig.warmup_file
    enable_local_profiling: Annotated[bool, ReadBy("`to_runner_config`: it sets `profile_some_steps_from` to 0")] = (
        False
    )
    """Profile the first steps."""
    use_native_multi_hash_table: bool | None = RunnerConfig.use_native_multi_hash_table
    clear_nn: bool = RunnerConfig.clear_nn
    continue_training: bool = RunnerConfig.continue_training
    reload_alias_map: dict[str, str] | None = RunnerConfig.reload_alias_map
    enable_alias_map_auto_gen: bool | None = RunnerConfig.enable_alias_map_auto_gen
    kafka_topics: str | None = RunnerConfig.kafka_topics
    kafka_group_id: str | None = RunnerConfig.kafka_group_id
    kafka_servers: str | None = RunnerConfig.kafka_servers
    disable_native_metrics: bool = RunnerConfig.disable_native_metrics
    save_summary_steps: int = RunnerConfig.save_summary_steps
    log_step_count_steps: int = RunnerConfig.log_step_count_steps

    def to_runner_config(self, runner: RunnerConfig | None = None) -> RunnerConfig:
        """Returns a `RunnerConfig` with the options set here; defaults of this class override nothing there.

        Discovery by Consul becomes ZooKeeper. Rows are read one batch ahead and gradients applied one step later
        unless GPU training is enabled: jobs started through this config always ran this way.

        Args:
            runner: Config with flags and the environment already applied; None: a new one.
        """
        options = RunnerConfig() if runner is None else runner
        options.update({name: getattr(self, name) for name in self.option_names() if self._is_said(name)}, Origin.CODE)
        if options.discovery_type is ServiceDiscoveryType.CONSUL:
            options.update({"discovery_type": ServiceDiscoveryType.ZK}, Origin.DEFAULT)
        if not options.enable_gpu_training:
            options.embedding_prefetch_capacity = max(1, options.embedding_prefetch_capacity)
            options.enable_embedding_postpush = True
        if self.enable_parameter_sync:
            options.enable_realtime_training = True
        if self.enable_local_profiling and options.profile_some_steps_from is None:
            options.profile_some_steps_from = 0
        return options

    def _is_said(self, name: str) -> bool:
        """Returns whether an option overrides `RunnerConfig`; this class's own defaults do not."""
        if name not in RunnerConfig.option_names() or not self.is_set(name):
            return False
        own = self.default_of(name)
        return bool(getattr(self, name) != own or own == RunnerConfig.default_of(name))
