"""A Consul agent for tests: a real HTTP server over TCP or a Unix socket, with its services in memory.

It answers the calls of stock Consul as its HTTP API documents them (agent/service/register, agent/service/deregister,
agent/check/pass, health/service) and the lookup call of the original's fleet.
"""

from __future__ import annotations

import http.server
import json
import socket
import socketserver
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, unquote, urlsplit

from ports import free_port


class Request(NamedTuple):
    """What a client asked."""

    method: str
    path: str
    body: dict[str, Any] | None


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _TcpServer | _UnixServer

    def do_GET(self) -> None:
        self._answer("GET")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name is the base class's
        pass

    def _answer(self, method: str) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, answer = self.server.agent.answer(
            Request(method, self.path, json.loads(raw) if raw else None), self.headers
        )
        body = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if body:  # a client that has read an empty answer may be gone already
            self.wfile.write(body)


class _TcpServer(http.server.ThreadingHTTPServer):
    agent: ConsulAgent
    daemon_threads = False
    request_queue_size = 128


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    agent: ConsulAgent
    request_queue_size = 128

    def get_request(self) -> tuple[socket.socket, Any]:
        request, _ = super().get_request()
        return request, ("unix socket", 0)  # the handler wants to name its client


class ConsulAgent:
    """The agent; ``start`` and ``stop`` as often as wanted, on the same port or socket. Stopping forgets everything."""

    def __init__(self, socket_path: Path | None = None, host: str = "127.0.0.1") -> None:
        self.socket_path = socket_path
        self.host = str(socket_path) if socket_path else host
        self.port = free_port()
        self.lock = threading.Lock()
        self.services: dict[str, dict[str, Any]] = {}
        self.passing: set[str] = set()
        self.requests: list[Request] = []
        self.tokens: list[str | None] = []
        self.hidden_ports: set[int] = set()
        """Ports of services that are accepted and never shown."""
        self.refuse_with: int | None = None
        """The status of every answer, if all calls are to fail."""
        self.lookups_say: str | None = None
        """What lookups are answered with status 200, if it is not what they asked for."""
        self._server: _TcpServer | _UnixServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self.socket_path:
            self.socket_path.unlink(missing_ok=True)
            self._server = _UnixServer(str(self.socket_path), _Handler)
        else:
            self._server = _TcpServer((self.host, self.port), _Handler)
        self._server.agent = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="consul-agent")
        self._thread.start()

    def stop(self) -> None:
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server = None
        if self.socket_path:
            self.socket_path.unlink()
        with self.lock:
            self.services.clear()
            self.passing.clear()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def paths(self, method: str) -> list[str]:
        """The paths asked for by one method, in order."""
        with self.lock:
            return [request.path for request in self.requests if request.method == method]

    def answer(self, request: Request, headers: Any) -> tuple[int, Any]:
        with self.lock:
            self.requests.append(request)
            self.tokens.append(headers.get("X-Consul-Token"))
            if self.refuse_with:
                return self.refuse_with, "no"
            url = urlsplit(request.path)
            parts = [unquote(part) for part in url.path.strip("/").split("/")]
            if self.lookups_say is not None and parts[1] in {"lookup", "health"}:
                return 200, self.lookups_say
            return self._route(request, parts, parse_qs(url.query))

    def _route(self, request: Request, parts: list[str], query: dict[str, list[str]]) -> tuple[int, Any]:
        match request.method, parts:
            case "PUT", ["v1", "agent", "service", "register"] if request.body:
                return self._register({key.lower(): value for key, value in request.body.items()})  # as Go reads JSON
            case "PUT", ["v1", "agent", "service", "deregister", service_id]:
                known = self.services.pop(service_id, None) is not None
                return (200, "") if known else (404, f'Unknown service ID "{service_id}"')
            case (("GET" | "PUT"), ["v1", "agent", "check", "pass", check]):
                return self._pass(check)
            case "GET", ["v1", "lookup", "name"] if query.get("addr-family") == ["dual-stack"]:
                return 200, [self._as_lookup(service) for service in self._named(query["name"][0])]
            case "GET", ["v1", "health", "service", name] if query.get("passing"):
                return 200, [self._as_health(service) for service in self._named(name)]
        return 400, f"no such call: {request.method} {request.path}"

    def _register(self, service: dict[str, Any]) -> tuple[int, Any]:
        self.services[service["id"]] = service
        self.passing.discard(service["id"])  # a check starts as critical
        if "ttl" not in {key.lower() for key in service["check"]}:
            self.passing.add(service["id"])  # the agent runs the script, which passes
        return 200, ""

    def _pass(self, check: str) -> tuple[int, Any]:
        service_id = check.removeprefix("service:")
        if service_id not in self.services:
            return 404, f'Unknown check ID "{check}"'
        self.passing.add(service_id)
        return 200, ""

    def _named(self, name: str) -> list[dict[str, Any]]:
        return [
            service
            for service_id, service in self.services.items()
            if service["name"] == name and service_id in self.passing and service["port"] not in self.hidden_ports
        ]

    def _as_lookup(self, service: dict[str, Any]) -> dict[str, Any]:
        return {
            "Host": "127.0.0.1",
            "Port": service["port"],
            "Tags": dict(tag.split(":", 1) for tag in service["tags"]),
        }

    def _as_health(self, service: dict[str, Any]) -> dict[str, Any]:
        check = {"CheckID": f"service:{service['id']}", "Status": "passing", "ServiceID": service["id"]}
        return {
            "Node": {"Node": "host-1", "Address": "127.0.0.1", "Datacenter": "dc1"},
            "Service": {
                "ID": service["id"],
                "Service": service["name"],
                "Tags": service["tags"],
                "Address": "",
                "Port": service["port"],
            },
            "Checks": [check],
        }
