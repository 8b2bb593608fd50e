"""Client of the cloud of a TPU: runtime version, health, and number of hosts.

If the package ``cloud_tpu_client`` is installed, it serves the first two, as in ByteDance Monolith; otherwise this
module makes the same calls to the cloud's REST interface.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote

from monolith.clock import SystemClock
from monolith.errors import DeadlineExceededError, FailedPreconditionError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monolith.clock import Clock

_log = logging.getLogger(__name__)

API: Final = "https://tpu.googleapis.com/v1"
METADATA: Final = "http://metadata.google.internal/computeMetadata/v1"
VERSION_PORT: Final = 8475
"""Port of a TPU node to set its version."""
HEALTHY_SECONDS: Final = 1200.0
LOOK_SECONDS: Final = 10.0
_REQUEST_SECONDS = 30.0


class HttpTransport(Protocol):
    """Makes one HTTP request and returns the body of the answer."""

    def __call__(self, method: str, url: str, headers: Mapping[str, str]) -> bytes:
        """Raises UnavailableError where there is no good answer."""


class TpuClient(Protocol):
    """What a run needs of a Cloud TPU."""

    def configure_tpu_version(self, version: str) -> None:
        """Sets the runtime version of all its nodes."""

    def wait_for_healthy(self) -> None:
        """Returns when it is healthy."""

    def num_hosts(self) -> int:
        """Returns the number of its hosts."""


def send(method: str, url: str, headers: Mapping[str, str]) -> bytes:
    """Sends one HTTP request, and returns the body of the response."""
    request = urllib.request.Request(url, method=method, headers=dict(headers))  # noqa: S310 - the cloud's own addresses
    try:
        with urllib.request.urlopen(request, timeout=_REQUEST_SECONDS) as answer:  # noqa: S310 - see above
            body: bytes = answer.read()
            return body
    except (urllib.error.URLError, TimeoutError, OSError) as error:
        raise UnavailableError(f"cloud: {method} {url}: {error}") from error


@dataclass(slots=True)
class CloudTpu:
    """A Cloud TPU by its name, reached by REST.

    Args of the constructor are its fields; project and zone are those of this machine where they are None.
    """

    tpu: str
    zone: str | None = None
    project: str | None = None
    transport: HttpTransport = send
    clock: Clock | None = None

    def configure_tpu_version(self, version: str) -> None:
        """Sets the runtime version of each of its nodes."""
        for address in self._addresses(self._node()):
            self.transport("POST", f"http://{address}:{VERSION_PORT}/requestversion/{quote(version, safe='')}", {})

    def wait_for_healthy(self) -> None:
        """Looks every ten seconds.

        Raises:
            DeadlineExceededError: it is not healthy within twenty minutes.
        """
        clock = SystemClock() if self.clock is None else self.clock
        deadline = clock.monotonic() + HEALTHY_SECONDS
        while True:
            health = self._node().get("health", "unknown")
            if health == "HEALTHY":
                return
            if clock.monotonic() >= deadline:
                raise DeadlineExceededError(
                    f"cloud: TPU {self.tpu!r} is {health!r} after {HEALTHY_SECONDS:.0f} s, not healthy; check it in"
                    " the cloud's console, or skip this step with --enable_tpu_version_config=false"
                )
            _log.info("cloud: TPU %s is %s; waiting until it is healthy", self.tpu, health)
            clock.sleep(LOOK_SECONDS)

    def num_hosts(self) -> int:
        """Returns the number of hosts that have an address."""
        return len(self._addresses(self._node()))

    def _node(self) -> dict[str, Any]:
        project = self.project or self._metadata("project/project-id")
        zone = self.zone or self._metadata("instance/zone").rpartition("/")[2]
        token = json.loads(self._metadata("instance/service-accounts/default/token"))["access_token"]
        names = [quote(part, safe="") for part in (project, zone, self.tpu)]
        url = f"{API}/projects/{names[0]}/locations/{names[1]}/nodes/{names[2]}"
        answer = self.transport("GET", url, {"Authorization": f"Bearer {token}"})
        try:
            node = json.loads(answer)
        except ValueError as error:
            raise UnavailableError(f"cloud: {url}: JSON expected, got {answer[:200]!r}") from error
        if not isinstance(node, dict):
            raise UnavailableError(f"cloud: {url}: a JSON object expected, got {answer[:200]!r}")
        return node

    def _metadata(self, name: str) -> str:
        return self.transport("GET", f"{METADATA}/{name}", {"Metadata-Flavor": "Google"}).decode()

    def _addresses(self, node: Mapping[str, Any]) -> list[str]:
        endpoints = node.get("networkEndpoints") or []
        addresses = [
            str(endpoint["ipAddress"])
            for endpoint in endpoints
            if isinstance(endpoint, dict) and "ipAddress" in endpoint
        ]
        if not addresses:
            raise FailedPreconditionError(
                f"cloud: TPU {self.tpu!r} has no address: its state is {node.get('state', 'unknown')!r}; start it first"
            )
        return addresses


def make_client(
    tpu: str, *, zone: str | None, project: str | None, find: Callable[[str], object] = importlib.util.find_spec
) -> TpuClient:
    """Returns the client of a Cloud TPU: that of the cloud if it is installed, else ours."""
    ours = CloudTpu(tpu, zone=zone, project=project)
    if find("cloud_tpu_client") is None:
        return ours
    library = importlib.import_module("cloud_tpu_client.client")
    return _LibraryClient(library.Client(tpu=tpu, zone=zone, project=project), ours)


class _LibraryClient:
    """The cloud's own client, which does not return the number of hosts."""

    def __init__(self, client: Any, ours: CloudTpu) -> None:
        self._client = client
        self._ours = ours

    def configure_tpu_version(self, version: str) -> None:
        self._client.configure_tpu_version(version=version)

    def wait_for_healthy(self) -> None:
        self._client.wait_for_healthy()

    def num_hosts(self) -> int:
        return self._ours.num_hosts()
