"""Who is where: one interface, one file per service.

Read `service_discovery` first. Services that need a package of their own import it when they are made, not before.
"""

from __future__ import annotations

from monolith.cluster.discovery.consul import ConsulServiceDiscovery, deregister_all
from monolith.cluster.discovery.consul_client import Client, ConsulException, UnixHTTPConnection
from monolith.cluster.discovery.host_files import HostServiceDiscovery
from monolith.cluster.discovery.service_discovery import ServiceDiscovery, ServiceDiscoveryType
from monolith.cluster.discovery.static_list import StaticServiceDiscovery
from monolith.cluster.discovery.stock_consul_client import StockClient
from monolith.cluster.discovery.tf_config import TfConfigServiceDiscovery

__all__ = [
    "Client",
    "ConsulException",
    "ConsulServiceDiscovery",
    "HostServiceDiscovery",
    "ServiceDiscovery",
    "ServiceDiscoveryType",
    "StaticServiceDiscovery",
    "StockClient",
    "TfConfigServiceDiscovery",
    "UnixHTTPConnection",
    "deregister_all",
]
