"""The client for a stock Consul agent: the same calls over its documented HTTP API."""

from __future__ import annotations

import urllib.parse
from typing import Any

from monolith import environment
from monolith.cluster.discovery.consul_client import Client


class StockClient(Client):
    """A `Client` for a stock Consul agent, on port 8500 by default.

    Only instances whose checks pass are found. ``CONSUL_HTTP_TOKEN``, where it is set, is sent with every call.
    """

    heartbeat_method = "PUT"
    default_port = 8500

    def _lookup(self, name: str, timeout: float) -> list[dict[str, Any]]:
        path = f"/v1/health/service/{urllib.parse.quote(name, safe='')}?passing=true"
        found = self._get_list(path, f"lookup {name}", timeout)
        return [_as_lookup(instance) for instance in found]

    def _registration(self, name: str, port: int, tags: list[str], check_script: str | None) -> dict[str, Any]:
        check = {"Interval": "30s", "Args": ["sh", "-c", check_script]} if check_script else {"TTL": "60s"}
        return {"ID": f"{name}-{port}", "Name": name, "Port": int(port), "Check": check, "Tags": tags}

    def _headers(self) -> dict[str, str]:
        token = environment.get("CONSUL_HTTP_TOKEN")
        return {"X-Consul-Token": token} if token else {}


def _as_lookup(instance: dict[str, Any]) -> dict[str, Any]:
    """Converts an entry of the health endpoint to the form of the lookup call: tags are a map."""
    service = instance.get("Service") or {}
    tags = dict(tag.split(":", 1) for tag in service.get("Tags") or [] if ":" in str(tag))
    return {
        "Host": service.get("Address") or instance.get("Node", {}).get("Address"),
        "Port": service.get("Port"),
        "Tags": tags,
    }
