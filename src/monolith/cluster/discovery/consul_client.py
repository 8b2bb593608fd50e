"""Clients of a Consul agent."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from monolith import environment
from monolith.clock import SystemClock
from monolith.cluster.discovery.service_discovery import start_heartbeat
from monolith.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monolith.background import PeriodicThread
    from monolith.clock import Clock

_log = logging.getLogger(__name__)

SOCKET_PATH = "/opt/tmp/sock/consul.sock"
DEFAULT_PORT = 2280
_LARGEST_ANSWER = 16 << 20
"""Bytes; enough for some hundred thousand instances. A larger response does not come from an agent."""
AGENT_TIMEOUT_SECONDS = 15.0
FIRST_LOOKUP_TIMEOUT_SECONDS = 30.0
"""For a name without an earlier lookup: the agent may have to fetch it, which takes longer than a refresh."""


class ConsulException(UnavailableError):  # noqa: N818  # the public name
    """The agent refused a request; ``status`` is the HTTP status of its response."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class UnixHTTPConnection(http.client.HTTPConnection):
    """HTTP over the Unix socket at ``path``."""

    def __init__(self, path: str, timeout: float | None = None) -> None:
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        """Connects to the socket file."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class HttpAnswer(NamedTuple):
    """Status and body of an HTTP response."""

    status: int
    body: bytes


class Client:
    """Looks up, registers and deregisters services at a Consul agent.

    The agent is at ``host`` (a path starting with ``/`` is a Unix socket), else at ``CONSUL_HTTP_HOST`` or
    ``TCE_HOST_IP``, else at the socket ``/opt/tmp/sock/consul.sock`` where that file exists, else on this machine; its
    port is ``port``, else ``CONSUL_HTTP_PORT``, else 2280.

    A registered service is kept alive by a thread of its own until it is deregistered or the client is closed. Every
    method may be called from any thread; one lock guards the cache and the table of threads, and is not held during
    calls to the agent.
    """

    heartbeat_method = "GET"
    default_port = DEFAULT_PORT

    def __init__(
        self,
        host: str | None = None,
        port: int | None = None,
        *,
        heartbeat_seconds: float = 30.0,
        retry_seconds: float = 2.0,
        clock: Clock | None = None,
    ) -> None:
        own_socket = SOCKET_PATH if Path(SOCKET_PATH).exists() else None
        named = environment.first_of("CONSUL_HTTP_HOST", "TCE_HOST_IP")
        self.host = host or named or own_socket or "127.0.0.1"
        self.port = port or int(environment.get("CONSUL_HTTP_PORT") or self.default_port)
        self._heartbeat_seconds = heartbeat_seconds
        self._retry_seconds = retry_seconds
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._cache: dict[str, tuple[float, list[dict[str, Any]]]] = {}
        self._heartbeats: dict[str, PeriodicThread] = {}

    def lookup(self, name: str, timeout: float = 3, cachetime: float = 0) -> list[dict[str, Any]]:
        """Returns the instances of a service: objects with ``Port`` and a map ``Tags``; none when the agent refuses.

        With ``cachetime`` a cached result up to that many seconds old is returned, and a name without an earlier lookup
        gets a timeout of 30 s instead of ``timeout``.

        Raises:
            OSError: The agent cannot be reached, or its response is not a list of instances.
        """
        if cachetime > 0:
            with self._lock:
                cached = self._cache.get(name)
            if cached and self._clock.monotonic() - cached[0] <= cachetime:
                return list(cached[1])
            timeout = timeout if cached else FIRST_LOOKUP_TIMEOUT_SECONDS
        instances = self._lookup(name, timeout)
        with self._lock:
            self._cache[name] = (self._clock.monotonic(), instances)
        return list(instances)

    def register(
        self,
        name: str,
        port: int,
        tags: Mapping[str, object] | None = None,
        check_script: str | None = None,
        host: str | None = None,
        *,
        still_wanted: Callable[[], bool] | None = None,
    ) -> None:
        """Registers the service ``<name>-<port>`` and keeps it alive.

        Its check is a time to live of 60 s, refreshed every 30 s; with ``check_script`` it is that script, which the
        agent runs every 30 s, and there is no thread. The service is registered again at an agent that has lost it, for
        example by a restart, unless ``still_wanted`` returns False. ``host`` is an agent to use instead of the client's
        own.

        Raises:
            ConsulException: The agent refused.
            OSError: The agent cannot be reached.
        """
        body = self._registration(name, port, [f"{key}:{value}" for key, value in (tags or {}).items()], check_script)
        service = _Service(self, f"{name}-{port}", body, host, still_wanted)
        self._stop_heartbeat(service.service_id)
        service.announce()
        if check_script:
            return
        if not service.beat():
            _log.warning("consul: the agent does not take heartbeats of %s", service.service_id)
        with self._lock:
            self._heartbeats[service.service_id] = start_heartbeat(
                service.beat,
                service.repair,
                name=service.service_id,
                interval_seconds=self._heartbeat_seconds,
                retry_seconds=self._retry_seconds,
            )

    def deregister(self, name: str, port: int, host: str | None = None) -> None:
        """Deregisters the service ``<name>-<port>`` and stops its heartbeat.

        Raises:
            ConsulException: The agent refused.
            OSError: The agent cannot be reached.
        """
        service_id = f"{name}-{port}"
        if host is None:
            self._stop_heartbeat(service_id)
        path = f"/v1/agent/service/deregister/{urllib.parse.quote(service_id)}"
        self.put(path, host, f"deregister {service_id}")

    def keeps_alive(self, name: str, port: int) -> bool:
        """Returns whether this client sends heartbeats for the service."""
        with self._lock:
            heartbeat = self._heartbeats.get(f"{name}-{port}")
        return heartbeat is not None and heartbeat.is_alive()

    def close(self) -> None:
        """Stops all heartbeats; the agent drops the services when their time to live has passed."""
        with self._lock:
            heartbeats = list(self._heartbeats.values())
            self._heartbeats.clear()
        for heartbeat in heartbeats:
            heartbeat.close()

    def _lookup(self, name: str, timeout: float) -> list[dict[str, Any]]:
        query = urllib.parse.urlencode({"name": name, "addr-family": "dual-stack"})
        return self._get_list(f"/v1/lookup/name?{query}", f"lookup {name}", timeout)

    def _registration(self, name: str, port: int, tags: list[str], check_script: str | None) -> dict[str, Any]:
        check = {"interval": "30s", "script": check_script} if check_script else {"ttl": "60s"}
        return {"id": f"{name}-{port}", "name": name, "port": int(port), "check": check, "tags": tags}

    def _get_list(self, path: str, what: str, timeout: float) -> list[dict[str, Any]]:
        answer = self.ask("GET", path, timeout=timeout)
        if answer.status != http.HTTPStatus.OK:
            _log.error("consul: %s failed with status %d: %s", what, answer.status, _shown(answer.body))
            return []
        entries = _parsed(answer.body)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ConnectionError(
                f"consul agent {self.host}: broken answer to {what}: expected a JSON list of objects, got "
                f"{_shown(answer.body)!r}"
            )
        return entries

    def put(self, path: str, host: str | None, what: str, body: Mapping[str, Any] | None = None) -> None:
        """Sends a PUT request to an agent; ``what`` names the change in the error.

        Raises:
            ConsulException: The agent refused.
        """
        answer = self.ask("PUT", path, host=host, body=json.dumps(body).encode() if body else None)
        if answer.status != http.HTTPStatus.OK:
            raise ConsulException(
                f"consul agent {host or self.host}: cannot {what}, status {answer.status}: {_shown(answer.body)}",
                answer.status,
            )

    def ask(
        self,
        method: str,
        path: str,
        *,
        host: str | None = None,
        body: bytes | None = None,
        timeout: float = AGENT_TIMEOUT_SECONDS,
    ) -> HttpAnswer:
        """Sends an HTTP request to an agent, the client's own if ``host`` is None.

        Raises:
            OSError: The agent cannot be reached, or the connection broke.
        """
        target = host or self.host
        connection: http.client.HTTPConnection
        if target.startswith("/"):
            connection = UnixHTTPConnection(target, timeout)
        else:
            connection = http.client.HTTPConnection(target, self.port, timeout=timeout)
        try:
            connection.request(method, path, body, self._headers())
            response = connection.getresponse()
            content = response.read(_LARGEST_ANSWER + 1)
            if len(content) > _LARGEST_ANSWER:
                raise ConnectionError(
                    f"consul agent {target}: the answer to {method} {path} is larger than {_LARGEST_ANSWER} bytes; is"
                    " it a Consul agent?"
                )
            if response.length:  # a read with a size does not raise on a truncated body
                raise http.client.IncompleteRead(content, response.length)
            return HttpAnswer(response.status, content)
        except http.client.HTTPException as err:  # a connection that broke inside an answer
            raise ConnectionError(f"consul agent {target}: broken answer to {method} {path}: {err!r}") from err
        finally:
            connection.close()

    def _headers(self) -> dict[str, str]:
        return {}

    def _stop_heartbeat(self, service_id: str) -> None:
        with self._lock:
            heartbeat = self._heartbeats.pop(service_id, None)
        if heartbeat:
            heartbeat.close()


@dataclass(frozen=True, slots=True)
class _Service:
    """A service that is registered at an agent (the client's own, if ``host`` is None), with its heartbeat."""

    client: Client
    service_id: str
    body: dict[str, Any]
    host: str | None
    still_wanted: Callable[[], bool] | None

    def announce(self) -> None:
        self.client.put("/v1/agent/service/register", self.host, f"register {self.service_id}", self.body)

    def beat(self) -> bool:
        path = f"/v1/agent/check/pass/service:{urllib.parse.quote(self.service_id)}"
        return self.client.ask(self.client.heartbeat_method, path, host=self.host).status == http.HTTPStatus.OK

    def repair(self) -> bool:
        if self._is_replaced():
            return False
        self.announce()
        is_beating = self.beat()
        # Another process may have replaced this service since the check above: then this registration is removed.
        if self._is_replaced():
            path = f"/v1/agent/service/deregister/{urllib.parse.quote(self.service_id)}"
            self.client.put(path, self.host, f"deregister {self.service_id}")
            return False
        return is_beating

    def _is_replaced(self) -> bool:
        if self.still_wanted is None or self.still_wanted():
            return False
        _log.warning("consul: %s was replaced and is not kept alive any more", self.service_id)
        return True


def _parsed(body: bytes) -> Any:
    """Returns the parsed response of an agent, or None where it is no JSON, as when a proxy responds instead."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _shown(body: bytes) -> str:
    return body.decode(errors="replace")[:200]


class StockClient(Client):
    """A `Client` for a stock Consul agent, on port 8500 by default.

    Only instances whose checks pass are found. ``CONSUL_HTTP_TOKEN``, where it is set, is sent with every call.
    """

    heartbeat_method = "PUT"
    default_port = 8500

    def _lookup(self, name: str, timeout: float) -> list[dict[str, Any]]:
        path = f"/v1/health/service/{urllib.parse.quote(name, safe='')}?passing=true"
        instances = self._get_list(path, f"lookup {name}", timeout)
        return [_as_lookup(instance) for instance in instances]

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
