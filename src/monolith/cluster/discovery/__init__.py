"""Service discovery: one interface; one file per service, and `plain_discovery` for those without one.

Read `service_discovery` first. Services that need a package of their own import it when they are constructed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from monolith.cluster.discovery.consul import ConsulServiceDiscovery, deregister_all
from monolith.cluster.discovery.consul_client import Client, ConsulException, StockClient, UnixHTTPConnection
from monolith.cluster.discovery.plain_discovery import (
    HostServiceDiscovery,
    MLPServiceDiscovery,
    StaticServiceDiscovery,
    TfConfigServiceDiscovery,
)
from monolith.cluster.discovery.service_discovery import ServiceDiscovery, ServiceDiscoveryType

if TYPE_CHECKING:
    from monolith.cluster.discovery.ray_actor import RayServiceDiscovery
    from monolith.cluster.discovery.zookeeper import ZKServiceDiscovery, clear_zk_path
    from monolith.cluster.discovery.zookeeper_client import MonolithKazooClient, default_zk_servers, is_ipv6_only

_LOADED_ON_USE = {
    "MonolithKazooClient": "zookeeper_client",
    "RayServiceDiscovery": "ray_actor",
    "ZKServiceDiscovery": "zookeeper",
    "clear_zk_path": "zookeeper",
    "default_zk_servers": "zookeeper_client",
    "is_ipv6_only": "zookeeper_client",
}
"""Names whose modules import a package that is not always installed."""

__all__ = [
    "Client",
    "ConsulException",
    "ConsulServiceDiscovery",
    "HostServiceDiscovery",
    "MLPServiceDiscovery",
    "MonolithKazooClient",
    "RayServiceDiscovery",
    "ServiceDiscovery",
    "ServiceDiscoveryType",
    "StaticServiceDiscovery",
    "StockClient",
    "TfConfigServiceDiscovery",
    "UnixHTTPConnection",
    "ZKServiceDiscovery",
    "clear_zk_path",
    "default_zk_servers",
    "deregister_all",
    "is_ipv6_only",
]


def __getattr__(name: str) -> object:
    if name not in _LOADED_ON_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LOADED_ON_USE[name]}"), name)
