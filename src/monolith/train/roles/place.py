"""Identity of a process of a job: role, index, address, and how it discovers the others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from monolith.cluster.addresses import concat_ip_and_port, get_local_host, split_address
from monolith.cluster.discovery import MLPServiceDiscovery, TfConfigServiceDiscovery

if TYPE_CHECKING:
    from monolith.cluster.discovery import ServiceDiscovery
    from monolith.train.compat.options import DistributedCpuTrainingConfig
    from monolith.train.config.job_config import JobConfig

__all__ = ["RolePlace", "is_scheduled", "role_and_index"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePlace:
    """One process of a job."""

    role: Literal["ps", "worker"]
    index: int
    num_ps: int
    """Servers that keep rows."""
    num_workers: int
    settings: JobConfig
    discovery: ServiceDiscovery
    model_dir: str
    publishes: bool = False
    """Whether the chief will have servers publish the rows that they keep."""

    @property
    def has_standbys(self) -> bool:
        """Returns whether there are more servers than are used."""
        return bool(self.settings.num_extra_ps or self.settings.num_redundant_ps)

    @property
    def num_registered_ps(self) -> int:
        """Servers that are started."""
        return self.num_ps + self.settings.num_extra_ps + self.settings.num_redundant_ps

    @property
    def token(self) -> str | None:
        """Returns the secret of the job, or None."""
        path = self.settings.token_file
        return None if path is None else Path(path).read_text(encoding="utf-8").strip()

    @property
    def address(self) -> str:
        """Address to listen on: the given host, else the scheduler's, else that of this machine.

        The port is the scheduler's, or a free one.
        """
        host, port = None, 0
        if isinstance(self.discovery, TfConfigServiceDiscovery | MLPServiceDiscovery) and self.discovery.addr:
            host, port = split_address(self.discovery.addr)
        return concat_ip_and_port(self.settings.host or host or get_local_host(), port)


def role_and_index(config: DistributedCpuTrainingConfig, discovery: ServiceDiscovery) -> tuple[str, int]:
    """Returns the role and index of this process; those of a scheduler have priority."""
    if isinstance(discovery, TfConfigServiceDiscovery | MLPServiceDiscovery):
        return discovery.server_type, discovery.index
    return config.server_type, config.index


def is_scheduled(discovery: ServiceDiscovery) -> bool:
    """Returns whether role and index come from a scheduler."""
    return isinstance(discovery, TfConfigServiceDiscovery | MLPServiceDiscovery)
