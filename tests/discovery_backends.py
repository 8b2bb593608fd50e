"""The services that the discovery contract is run on. A new one is tested by one line at the end of this file."""

from __future__ import annotations

import abc
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from consul_agent import ConsulAgent
from monolith.cluster import DiscoveryConfig, get_discovery
from monolith.cluster.discovery import (
    ConsulServiceDiscovery,
    HostServiceDiscovery,
    MLPServiceDiscovery,
    ServiceDiscovery,
    StaticServiceDiscovery,
    TfConfigServiceDiscovery,
)
from monolith.cluster.discovery.consul_client import Client, StockClient
from monolith.cluster.discovery.ray_actor import RayServiceDiscovery, start_registry
from monolith.cluster.discovery.zookeeper import ZKServiceDiscovery
from monolith.cluster.discovery.zookeeper_client import MonolithKazooClient
from monolith.cluster.runtimes import MLPEnv
from monolith.cluster.runtimes.ray import NAMESPACE, load_ray
from other_packages import EXAMPLE, installed
from zookeeper_server import SESSION_SECONDS, ZooKeeperServer

PS = ["10.0.0.1:2222", "10.0.0.2:2222"]
WORKERS = ["10.0.1.1:3333", "10.0.1.2:3333", "10.0.1.3:3333"]
"""What a service that only answers knows from the start."""


def eventually(reached: Callable[[], bool], what: str, *, seconds: float = 120.0) -> None:
    """Wait until something is true, which others bring about."""
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01)


class Backend(abc.ABC):
    """A running service, and clients of it; closing the stack ends them all."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.stack = stack

    @abc.abstractmethod
    def client(self) -> ServiceDiscovery:
        """A new client of the service; the caller closes it, or the stack does."""

    def new(self) -> ServiceDiscovery:
        """A client that is closed with the stack."""
        return self.stack.enter_context(self.client())


class WritableBackend(Backend):
    """A service that processes register with."""

    @abc.abstractmethod
    def lose(self) -> None:
        """Make the service unavailable, as a crash or a network failure does."""

    @abc.abstractmethod
    def restart(self) -> None:
        """Make the service available again."""


class StaticBackend(Backend):
    def client(self) -> ServiceDiscovery:
        return StaticServiceDiscovery({"ps": PS, "worker": WORKERS})


class TfConfigBackend(Backend):
    def client(self) -> ServiceDiscovery:
        cluster = {"ps": PS, "chief": WORKERS[:1], "worker": WORKERS[1:]}
        return TfConfigServiceDiscovery(json.dumps({"cluster": cluster, "task": {"type": "ps", "index": 0}}))


class MLPBackend(Backend):
    """Ports are not tried: nobody listens at these addresses."""

    def client(self) -> ServiceDiscovery:
        return MLPServiceDiscovery(MLPEnv(mlp_variables(PS, WORKERS)))

    def new(self) -> ServiceDiscovery:
        discovery = super().new()
        assert isinstance(discovery, MLPServiceDiscovery)
        discovery.query = partial(discovery.query, skip_port_check=True)  # type: ignore[method-assign]
        return discovery


def mlp_variables(servers: list[str], workers: list[str]) -> dict[str, str]:
    """The variables of server 0 of such a job."""
    variables = {"MLP_ROLE": "ps", "MLP_ROLE_INDEX": "0", "MLP_PORT": servers[0].rpartition(":")[2]}
    for role, addrs in (("PS", servers), ("WORKER", workers)):
        variables[f"MLP_{role}_NUM"] = str(len(addrs))
        for index, addr in enumerate(addrs):
            host, _, port = addr.rpartition(":")
            variables[f"MLP_{role}_{index}_PRIMARY_HOST"] = f'"{host}"'
            variables[f"MLP_{role}_{index}_PORT"] = port
    return variables


class HostFilesBackend(WritableBackend):
    @property
    def base(self) -> Path:
        return self.folder / "shared"

    def client(self) -> ServiceDiscovery:
        return HostServiceDiscovery(str(self.base))

    def lose(self) -> None:
        self.base.rename(self.folder / "unmounted")

    def restart(self) -> None:
        (self.folder / "unmounted").rename(self.base)


class OtherPackageBackend(HostFilesBackend):
    """A service that another package adds, selected by a URL."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        super().__init__(folder, stack)
        stack.enter_context(installed(EXAMPLE))

    def client(self) -> ServiceDiscovery:
        discovery = get_discovery(DiscoveryConfig(discovery_type=f"board://{self.base}"))
        assert type(discovery).__name__ == "BoardDiscovery"
        assert discovery is not None
        return discovery


class ConsulBackend(WritableBackend):
    """The original's lookup call, over TCP."""

    client_class: type[Client] = Client

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        super().__init__(folder, stack)
        self.agent = stack.enter_context(ConsulAgent(self.socket_path()))

    def socket_path(self) -> Path | None:
        return None

    def client(self) -> ServiceDiscovery:
        client = self.client_class(self.agent.host, self.agent.port, heartbeat_seconds=0.02, retry_seconds=0.02)
        return ConsulServiceDiscovery("job-uuid", 0.02, client=client, agent_per_host=False, max_backoff_seconds=0.02)

    def lose(self) -> None:
        self.agent.stop()

    def restart(self) -> None:
        self.agent.start()


class ConsulSocketBackend(ConsulBackend):
    """The same over a Unix socket."""

    def socket_path(self) -> Path | None:
        return self.folder / "consul.sock"


class StockConsulBackend(ConsulBackend):
    """The API of Consul as it is published."""

    client_class = StockClient


class ZooKeeperBackend(WritableBackend):
    """A job of its own on the server that all tests share."""

    server: ZooKeeperServer

    def client(self) -> ServiceDiscovery:
        client = MonolithKazooClient(self.server.address, timeout=SESSION_SECONDS)
        return ZKServiceDiscovery(self.folder.name, client=client, delay=5)

    def lose(self) -> None:
        self.server.kill()

    def restart(self) -> None:
        self.server.start()


class RayBackend(WritableBackend):
    """An actor of its own on the cluster that all tests share; the service is lost for good, and made anew."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        super().__init__(folder, stack)
        self.restart()
        stack.callback(self.lose)

    def client(self) -> ServiceDiscovery:
        return RayServiceDiscovery(self.folder.name, beat_seconds=0.02)

    def lose(self) -> None:
        load_ray().kill(self.actor)
        eventually(lambda: not self.is_listed(), "the actor is gone")

    def is_listed(self) -> bool:
        try:
            load_ray().get_actor(self.folder.name, namespace=NAMESPACE)
        except ValueError:
            return False
        return True

    def restart(self) -> None:
        self.actor = start_registry(self.folder.name)


READABLE: dict[str, type[Backend]] = {
    "static": StaticBackend,
    "tf_config": TfConfigBackend,
    "mlp": MLPBackend,
}
WRITABLE: dict[str, type[WritableBackend]] = {
    "host_files": HostFilesBackend,
    "another_package": OtherPackageBackend,
    "consul": ConsulBackend,
    "consul_socket": ConsulSocketBackend,
    "stock_consul": StockConsulBackend,
    "zookeeper": ZooKeeperBackend,
    "ray": RayBackend,
}
