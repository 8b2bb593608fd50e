"""Discovery of the peers of a training process, and communication with its scheduler.

Imports nothing above `monolith.observe`. Read `addresses` first, then `discovery` (addresses of processes), `manager`
(members of the training cluster) and `runtimes` (the scheduler that started the process).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith._deprecated import former_names as _former_names
from monolith.cluster.addresses import (
    AddressFamily,
    concat_ip_and_port,
    get_local_host,
    get_local_ip,
    get_local_server_addr,
    is_ipv4_supported,
    is_ipv6_address,
    resolve_hostname,
    split_address,
)
from monolith.cluster.barrier import Barrier, BarrierAlreadyPlacedError, BarrierOp, BarrierPhase
from monolith.cluster.liveness import NodeAliveChecker, check_port
from monolith.cluster.manager import (
    Incomplete,
    emit_store,
    fetch_ps_cluster_from_file,
    get_ps_cluster_file_name,
    get_training_cluster,
    save_ps_cluster_to_file,
)
from monolith.cluster.runner_settings import (
    ContainerType,
    DiscoveryConfig,
    get_discovery,
    monolith_discovery,
    own_place,
    prepare_runner,
)
from monolith.cluster.training_cluster import ClusterRequest, SessionConfig, TrainingCluster, generate_session_config

__all__ = [
    "AddressFamily",
    "Barrier",
    "BarrierAlreadyPlacedError",
    "BarrierOp",
    "BarrierPhase",
    "ClusterRequest",
    "ContainerType",
    "DiscoveryConfig",
    "Incomplete",
    "NodeAliveChecker",
    "SessionConfig",
    "TrainingCluster",
    "check_port",
    "concat_ip_and_port",
    "emit_store",
    "fetch_ps_cluster_from_file",
    "generate_session_config",
    "get_discovery",
    "get_local_host",
    "get_local_ip",
    "get_local_server_addr",
    "get_ps_cluster_file_name",
    "get_training_cluster",
    "is_ipv4_supported",
    "is_ipv6_address",
    "monolith_discovery",
    "own_place",
    "prepare_runner",
    "resolve_hostname",
    "save_ps_cluster_to_file",
    "split_address",
]

if not TYPE_CHECKING:  # type checkers accept only the current names
    __getattr__ = _former_names(__name__, {"RunnerSettings": "DiscoveryConfig"})
