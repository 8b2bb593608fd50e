"""The identity of a process and its way to discover others, from the flags of a runner and from its scheduler."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import logging
from typing import TYPE_CHECKING

from monolith.cluster.discovery import ScheduledDiscovery, ServiceDiscovery, ServiceDiscoveryType
from monolith.cluster.runtimes import MLPEnv, add_mpi_exception_hook, mlp_pass, mpi_rank
from monolith.config import Config, config
from monolith.extensions import Registry

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

    from monolith.cluster.runtimes import DataService

_log = logging.getLogger(__name__)

_KAFKA_FLAGS = ("kafka_topics", "kafka_group_id", "kafka_servers")


class ContainerType(enum.Enum):
    """The container of a process; the numbers are those of saved configs."""

    DOCKER = 1
    NATIVE = 2


@config
class DiscoveryConfig(Config):
    """The part of a runner's config that defines its identity and its discovery."""

    is_local: bool = False
    """Train in this process alone, without discovery."""
    server_type: str = "worker"
    """The role of this process, ``ps`` or ``worker``."""
    index: int = 0
    """The index of this process in its role."""
    uuid: str = ""
    """The name of the run; the name of its service in Consul, and of its actor on Ray."""
    deep_insight_name: str | None = None
    """The name of the job over many runs; its name in ZooKeeper."""
    container_type: ContainerType = ContainerType.DOCKER
    """Container of this process."""
    discovery_type: ServiceDiscoveryType | str = ServiceDiscoveryType.CONSUL
    """The discovery service; that of another package by its name, or by a URL with this name as its scheme."""
    tf_config: str | None = None
    """``TF_CONFIG`` as Primus gives it, JSON."""
    zk_server: str | None = None
    """Servers of ZooKeeper, ``host:port`` separated by commas."""
    discovery_dir: str = ""
    """Folder of addresses, any fsspec path, where host files are the service."""
    enable_gpu_training: bool = False
    """Train on GPUs."""
    enable_partial_sync_training: bool = False
    """Dense parameters by collective calls, tables on parameter servers."""
    kafka_topics: str | None = None
    """Topics of a streaming source, separated by commas."""
    kafka_group_id: str | None = None
    """The consumer group of a streaming source."""
    kafka_servers: str | None = None
    """The brokers of a streaming source."""


def prepare_runner(
    settings: DiscoveryConfig, flags: MutableMapping[str, object], *, data_service: DataService | None = None
) -> DiscoveryConfig:
    """Prepares the start of a runner, and returns its settings with the index that the scheduler gave.

    On the MLP platform a process of the data service never returns from here, and a worker waits for that service,
    whose address goes to the flag ``data_service_dispatcher``. Under MPI an uncaught exception aborts all processes of
    the job from now on, and a worker on a GPU in partially synchronous training, whose index was not set, takes its
    rank. Kafka settings that are set go to the flags of the same names.
    """
    dispatcher = mlp_pass(env=MLPEnv(), data_service=data_service)
    if dispatcher is not None:
        flags["data_service_dispatcher"] = dispatcher
    add_mpi_exception_hook()
    prepared = _with_index(settings)
    for name in _KAFKA_FLAGS:
        if (value := getattr(settings, name)) is not None:
            flags[name] = value
    return prepared


def _with_index(settings: DiscoveryConfig) -> DiscoveryConfig:
    rank = mpi_rank()
    by_rank = settings.enable_gpu_training and settings.enable_partial_sync_training
    if by_rank and settings.server_type == "worker" and settings.index <= 0 and rank is not None:
        return dataclasses.replace(settings, index=rank)
    return settings


_PLAIN = "monolith.cluster.discovery.plain_discovery"
_BUILTIN = {
    "primus": f"{_PLAIN}:TfConfigServiceDiscovery",
    "consul": "monolith.cluster.discovery.consul:ConsulServiceDiscovery",
    "zk": "monolith.cluster.discovery.zookeeper:ZKServiceDiscovery",
    "mlp": f"{_PLAIN}:MLPServiceDiscovery",
    "host": f"{_PLAIN}:HostServiceDiscovery",
    "ray": "monolith.cluster.discovery.ray_actor:RayServiceDiscovery",
}
_SERVICES = Registry("monolith.discovery", _BUILTIN, ServiceDiscovery, setting="discovery_type")
_REQUIRED = {
    "primus": ("tf_config", "hold the TF_CONFIG of this process"),
    "host": ("discovery_dir", "be a folder that all processes of the job reach"),
    "ray": ("uuid", "be the name of the job's actor"),
}
"""Service -> the setting that it is made of, and what that must do."""


def discovery_name(kind: ServiceDiscoveryType | str) -> str:
    """Returns the name of a discovery service, such as ``zk`` for `ZK` and ``etcd`` for ``etcd://10.0.0.7:2379``."""
    return kind.partition("://")[0] if isinstance(kind, str) else kind.name.lower()


def is_scheduled(kind: ServiceDiscoveryType | str) -> bool:
    """Returns whether a discovery service is a scheduler's; raises as `get_discovery` does if it cannot be used."""
    name = discovery_name(kind)
    if name in _BUILTIN:  # without importing it: a launcher may have no client of ZooKeeper
        return name in ("primus", "mlp")
    return issubclass(_SERVICES.get(name), ScheduledDiscovery)


def get_discovery(runner_conf: DiscoveryConfig, psm: str | None = None) -> ServiceDiscovery | None:
    """Returns the discovery service of a runner, which the caller closes; None for a local one.

    Args:
        runner_conf: Settings that select the service.
        psm: The name of the service in Consul; by default the uuid of the run.

    Raises:
        ValueError: There is no such service, or what it needs is not set.
        FailedPreconditionError: The package that has it is broken.
    """
    if runner_conf.is_local:
        return None
    service = _SERVICES.get(discovery_name(runner_conf.discovery_type))
    discovery: ServiceDiscovery = service(*_arguments(runner_conf, psm))
    return discovery


def _arguments(conf: DiscoveryConfig, psm: str | None) -> tuple[str | None, ...]:
    """Returns the arguments of the service's class; that of another package gets the text that selects it."""
    name = discovery_name(conf.discovery_type)
    if name in _REQUIRED:
        setting, must = _REQUIRED[name]
        if not (value := getattr(conf, setting)):
            raise ValueError(f"discovery by {name}: {setting} must {must}, got nothing")
        return (value,)
    others = {"consul": (psm or conf.uuid,), "mlp": (), "zk": (conf.deep_insight_name or "", conf.zk_server)}
    return others.get(name, (str(conf.discovery_type),))


def own_place(runner_conf: DiscoveryConfig, service: ServiceDiscovery | None) -> tuple[str, int]:
    """Returns the role and index of this process. Values of the scheduler take precedence."""
    if isinstance(service, ScheduledDiscovery):
        return service.server_type, service.index
    return runner_conf.server_type, runner_conf.index


@contextlib.contextmanager
def monolith_discovery(runner_conf: DiscoveryConfig) -> Iterator[ServiceDiscovery | None]:
    """Yields the discovery service of a runner and closes it; None for a local one."""
    service = get_discovery(runner_conf)
    _log.info("discovery: using %s", type(service).__name__ if service else "none, this runner is local")
    try:
        yield service
    finally:
        if service is not None:
            service.close()
            _log.info("discovery: closed")
