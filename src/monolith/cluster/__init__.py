"""How a training process finds its peers and speaks to its scheduler.

Imports nothing above `monolith.observe`. Read `addresses` first, then `discovery` (who is where), `manager` (who
belongs to my training cluster) and `runtimes` (the scheduler that started me).
"""

from __future__ import annotations

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
from monolith.cluster.liveness import NodeAliveChecker, check_port

__all__ = [
    "AddressFamily",
    "NodeAliveChecker",
    "check_port",
    "concat_ip_and_port",
    "get_local_host",
    "get_local_ip",
    "get_local_server_addr",
    "is_ipv4_supported",
    "is_ipv6_address",
    "resolve_hostname",
    "split_address",
]
