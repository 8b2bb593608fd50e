"""Service discovery: one interface, one file per service.

Read `service_discovery` first. Services that need a package of their own import it when they are constructed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from monolith.cluster.discovery.consul import ConsulServiceDiscovery, deregister_all
from monolith.cluster.discovery.consul_client import Client, ConsulException, UnixHTTPConnection
from monolith.cluster.discovery.host_files import HostServiceDiscovery
from monolith.cluster.discovery.mlp import MLPServiceDiscovery
from monolith.cluster.discovery.service_discovery import ServiceDiscovery, ServiceDiscoveryType
from monolith.cluster.discovery.static_list import StaticServiceDiscovery
from monolith.cluster.discovery.stock_consul_client import StockClient
from monolith.cluster.discovery.tf_config import TfConfigServiceDiscovery

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
