"""`RunnerConfig`: everything that a command line can say about a run."""

from __future__ import annotations

from monolith.cluster import AddressFamily, RunnerSettings
from monolith.cluster.discovery import ServiceDiscoveryType
from monolith.train.distributed_config import DistributedCpuTrainingConfig
from monolith.train.flat_config import flat_config

__all__ = ["RunnerConfig"]


@flat_config
class RunnerConfig(DistributedCpuTrainingConfig):
    """A run as a runner is told it.

    >>> RunnerConfig(modeldir="/models")
    Traceback (most recent call last):
    TypeError: RunnerConfig: unknown option 'modeldir'; did you mean 'model_dir'?
    """

    task: str | None = None
    """Which task: module:Class, or a registered name."""
    tf_config: str | None = None
    """TF_CONFIG of the scheduler, JSON."""
    deep_insight_name: str | None = None
    """Name of the job over many runs."""
    discovery_type: ServiceDiscoveryType = ServiceDiscoveryType.CONSUL
    """Who knows the addresses."""
    zk_server: str | None = None
    """Servers of ZooKeeper."""
    zk_watch_address_family: str = AddressFamily.IPV4
    """Which addresses are watched there, ipv4 or ipv6."""
    is_local: bool = False
    """This process alone."""
    enable_fid_dedup: bool = False
    """Nothing: ids are always made distinct."""
    bzid: str | None = None
    """Business id of serving."""
    base_name: str | None = None
    """Family of served models."""
    ps_replica_num: int | None = None
    """Replicas in serving."""
    tf_grpc_worker_cache_threads: int = 16
    """Threads of TensorFlow's worker cache."""
    monolith_grpc_worker_service_handler_multiplier: float = 1.0
    """Handlers of TensorFlow's worker service."""
    params_override: str | None = None
    """Task parameters by dotted name, JSON."""
    data_type: str | None = None
    """What the input holds: Instance, Example or ExampleBatch."""
    feature_list: str | None = None
    """Name of a list of features."""
    lagrangex_header: bool = False
    """Framing of the input."""
    sort_id: bool = True
    """Framing of the input."""
    kafka_dump: bool = False
    """Framing of the input."""
    kafka_dump_prefix: bool = False
    """Framing of the input."""
    restore_dir: str | None = None
    """Begin with the checkpoint of another directory."""
    restore_ckpt: str | None = None
    """Begin with another checkpoint than the latest."""
    deep_insight_target: str | None = None
    """Heads whose predictions are sent."""
    deep_insight_sample_ratio: float | None = None
    """Share of the samples that are sent."""
    unified_serving: bool = False
    """Find serving by the unified backend."""
    use_estimator: bool = False
    """Nothing: declared only, in the original too."""
    kafka_topics: str | None = None
    """Topics of a stream, separated by commas."""
    kafka_group_id: str | None = None
    """Its consumer group."""
    kafka_servers: str | None = None
    """Its brokers."""
    input_path: str | None = None
    """Where files are."""
    wildcard: str | None = None
    """Which files."""
    start_date: str | None = None
    """First day, YYYYMMDD."""
    end_date: str | None = None
    """Day after the last one."""
    is_hourly: bool = False
    """Folders by hour."""
    start_hour: int | None = None
    """First hour."""
    end_hour: int | None = None
    """Hour after the last one."""
    enable_dynamic_sharding: bool = False
    """Files from a queue that workers share."""
    max_task_num_per_worker: int = 1
    """Readers of one worker at a time."""
    disable_native_metrics: bool = True
    """Do without AUC or squared error of training."""

    def check(self) -> None:
        """Refuses what contradicts itself."""
        super().check()
        families = (AddressFamily.IPV4, AddressFamily.IPV6)
        if self.zk_watch_address_family not in families:
            raise ValueError(
                f"RunnerConfig: zk_watch_address_family must be {' or '.join(families)}, got"
                f" {self.zk_watch_address_family!r}"
            )

    def runner_settings(self) -> RunnerSettings:
        """Who this process is and how it finds the others, for `monolith.cluster.get_discovery`."""
        names = [name for name in RunnerSettings.__dataclass_fields__ if name in self.__dataclass_fields__]
        return RunnerSettings(**{name: getattr(self, name) for name in names})
