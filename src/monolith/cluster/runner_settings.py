"""The identity of a process and its way to discover others, from the flags of a runner and from its scheduler."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import logging
from typing import TYPE_CHECKING

from monolith.cluster import discovery
from monolith.cluster.discovery import (
    ConsulServiceDiscovery,
    HostServiceDiscovery,
    MLPServiceDiscovery,
    ServiceDiscovery,
    ServiceDiscoveryType,
    TfConfigServiceDiscovery,
)
from monolith.cluster.runtimes import MLPEnv, add_mpi_exception_hook, mlp_pass, mpi_rank
from monolith.config import Config, config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableMapping

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
    discovery_type: ServiceDiscoveryType = ServiceDiscoveryType.CONSUL
    """The discovery service."""
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


def get_discovery(runner_conf: DiscoveryConfig, psm: str | None = None) -> ServiceDiscovery | None:
    """Returns the discovery service of a runner, which the caller closes; None for a local one.

    Args:
        runner_conf: Settings that select the service.
        psm: The name of the service in Consul; by default the uuid of the run.

    Raises:
        ValueError: What the chosen service needs is not set.
    """
    return None if runner_conf.is_local else _services(runner_conf, psm)[runner_conf.discovery_type]()


def _services(conf: DiscoveryConfig, psm: str | None) -> dict[ServiceDiscoveryType, Callable[[], ServiceDiscovery]]:
    """Returns the constructors of all services. Some import on use: they need a package that the others do not."""
    return {
        ServiceDiscoveryType.PRIMUS: lambda: TfConfigServiceDiscovery(
            _required(conf, "tf_config", "hold the TF_CONFIG of this process")
        ),
        ServiceDiscoveryType.CONSUL: lambda: ConsulServiceDiscovery(psm or conf.uuid),
        ServiceDiscoveryType.MLP: MLPServiceDiscovery,
        ServiceDiscoveryType.HOST: lambda: HostServiceDiscovery(
            _required(conf, "discovery_dir", "be a folder that all processes of the job reach")
        ),
        ServiceDiscoveryType.ZK: lambda: discovery.ZKServiceDiscovery(conf.deep_insight_name or "", conf.zk_server),
        ServiceDiscoveryType.RAY: lambda: discovery.RayServiceDiscovery(
            _required(conf, "uuid", "be the name of the job's actor")
        ),
    }


def _required(conf: DiscoveryConfig, name: str, must: str) -> str:
    if not (value := getattr(conf, name)):
        raise ValueError(f"discovery by {conf.discovery_type.name}: {name} must {must}, got nothing")
    return str(value)


def own_place(runner_conf: DiscoveryConfig, service: ServiceDiscovery | None) -> tuple[str, int]:
    """Returns the role and index of this process. Values of the scheduler take precedence."""
    if isinstance(service, TfConfigServiceDiscovery | MLPServiceDiscovery):
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
