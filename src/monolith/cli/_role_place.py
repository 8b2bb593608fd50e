"""Identity of this process in a job, and how it discovers the others; errors are raised before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith import environment
from monolith.cluster import own_place
from monolith.cluster.discovery import MLPServiceDiscovery, ServiceDiscoveryType, TfConfigServiceDiscovery
from monolith.train.compat.flat_config import Origin
from monolith.train.rank_place import take_rank

if TYPE_CHECKING:
    from monolith.cluster.discovery import ServiceDiscovery
    from monolith.train.compat.options import RunnerConfig

__all__ = ["require_service", "take_place"]

_TF_CONFIG = "TF_CONFIG"
_SERVICES = (
    "--discovery_type host --discovery_dir DIR, zk --zk_server HOSTS --deep_insight_name NAME, consul --uuid NAME,"
    " primus with TF_CONFIG, or mlp"
)


def require_service(options: RunnerConfig) -> None:
    """Refuses a process that could not find the others; TF_CONFIG of the environment counts."""
    if options.discovery_type is ServiceDiscoveryType.PRIMUS and options.tf_config is None:
        options.update({"tf_config": environment.get(_TF_CONFIG)}, Origin.CODE)
    if not options.is_set("discovery_type") and not options.uuid:
        hint = "; TF_CONFIG is set: did you mean --discovery_type primus?" if environment.get(_TF_CONFIG) else ""
        raise ValueError(f"--discovery_type: specify how the processes of the job find each other: {_SERVICES}{hint}")


def take_place(options: RunnerConfig, service: ServiceDiscovery | None, *, command: str | None) -> None:
    """Takes the place that the scheduler gives this process, and refuses one that the job does not have."""
    kind, index = own_place(options.runner_settings(), service)
    scheduled = None
    if isinstance(service, TfConfigServiceDiscovery | MLPServiceDiscovery):
        scheduled = index
        _take_numbers(options, service)
    if command is not None and kind != command:
        raise ValueError(
            f"this is a {command} by its command, and {kind} {index} by {options.discovery_type.name}; start the"
            f" command that the scheduler means, or monolith train, which takes its word"
        )
    if kind not in ("ps", "worker"):
        raise ValueError(f"--server_type: must be ps or worker, got {kind!r}")
    if options.num_ps < 1:
        raise ValueError(f"--num_ps: a job has 1 parameter server or more, got {options.num_ps}")
    if kind == "worker" and options.enable_partial_sync_training:
        take_rank(options, scheduled=scheduled)
        index = options.index
    number, name = (_num_servers(options), "servers") if kind == "ps" else (options.num_workers, "workers")
    if not 0 <= index < number:
        raise ValueError(f"--index: the job has {number} {name}, so it must be from 0 to {number - 1}, got {index}")
    options.update({"server_type": kind, "index": index}, Origin.CODE)


def _take_numbers(options: RunnerConfig, service: TfConfigServiceDiscovery | MLPServiceDiscovery) -> None:
    """Takes the size of the job from the scheduler, and refuses another one that was given."""
    listed = service.query_all()
    found = {"num_ps": len(listed.get("ps", {})), "num_workers": len(listed.get("worker", {}))}
    extra = _num_servers(options) - options.num_ps
    for name, number in found.items():
        wanted = number - extra if name == "num_ps" else number
        if not options.is_set(name):
            options.update({name: wanted}, Origin.CODE)
        elif getattr(options, name) != wanted:
            spare = f", {extra} of them to spare" if extra and name == "num_ps" else ""
            raise ValueError(
                f"--{name}: {options.discovery_type.name} lists {number}{spare}, got {getattr(options, name)}; give"
                f" {wanted}, or leave it out"
            )


def _num_servers(options: RunnerConfig) -> int:
    return options.num_ps + options.num_extra_ps + options.num_redundant_ps
