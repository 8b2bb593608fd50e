"""What a server is started with: where it listens, whom it lets in, and what it refuses."""

from __future__ import annotations

from dataclasses import field

from monolith.cluster.credentials import ServerCredentials
from monolith.config import Config, config, require_positive
from monolith.serving.request_log.config import RequestLogConfig  # noqa: TC001 - a field of a config
from monolith.serving.server.request_queue import QueueRules

__all__ = ["LOOPBACK", "Limits", "ServerConfig"]

LOOPBACK = "127.0.0.1"


@config
class Limits(Config):
    """What a client may ask for, and how long it may take to do so."""

    body_bytes: int = 16 << 20
    """Largest body of a request."""
    examples: int = 10_000
    """Most examples (candidates) of a request."""
    json_depth: int = 32
    """Deepest nesting of JSON."""
    connections: int = 1024
    """Open connections over HTTP, and at most three quarters of the descriptors that the process may open. One more,
    and the oldest without a request in progress is closed; where all have one, it is answered 503 and closed."""
    concurrent_rpcs: int = 256
    """Calls over gRPC at a time; more are answered RESOURCE_EXHAUSTED."""
    head_seconds: float = 10.0
    """For the head of a request over HTTP, and between two requests of a connection."""
    body_seconds: float = 10.0
    """For its body."""
    write_seconds: float = 10.0
    """For reading the answer."""
    request_seconds: float = 10.0
    """For an answer, when the client names no shorter time."""

    def __post_init__(self) -> None:
        require_positive(self, "body_bytes", "examples", "json_depth", "connections", "concurrent_rpcs")
        require_positive(self, "head_seconds", "body_seconds", "write_seconds", "request_seconds")


@config
class ServerConfig(Config):
    """What a server is started with."""

    host: str = LOOPBACK
    """Interface to listen on; ``0.0.0.0`` or ``::`` for all. Default: this machine only."""
    port: int | None = 0
    """Of HTTP; 0 takes a free one, None answers none."""
    grpc_port: int | None = None
    """Of gRPC; 0 takes a free one, None answers none."""
    metrics_port: int | None = None
    """Of Prometheus metrics; 0 takes a free one, None has none."""
    token: str | None = field(default=None, repr=False)
    """A secret that clients must send: ``Authorization: Bearer <token>``. Probes of health need none."""
    tls_certificate: str | None = None
    """File with the server's certificate chain, PEM; given together with its key. Turns TLS on."""
    tls_key: str | None = field(default=None, repr=False)
    """File with the private key of the certificate, PEM."""
    tls_client_ca: str | None = None
    """File with the authorities whose certificates clients must show, PEM."""
    limits: Limits = field(default_factory=Limits)
    queue: QueueRules = field(default_factory=QueueRules)
    request_log: RequestLogConfig | None = None
    """Writes what was asked and answered; None: nothing does."""
    lame_duck_seconds: float = 0.0
    """How long it answers on, as not ready, once it was told to end: for balancers that look only now and then."""
    drain_seconds: float = 30.0
    """For requests that were taken in, before it ends."""

    def __post_init__(self) -> None:
        for name in ("port", "grpc_port", "metrics_port"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 65535:
                raise ValueError(f"ServerConfig: {name} must be from 0 to 65535 or None, got {value}")
        if self.port is None and self.grpc_port is None:
            raise ValueError("ServerConfig: port and grpc_port are both None; give one of them, 0 takes a free one")
        if self.lame_duck_seconds < 0 or self.drain_seconds < 0:
            raise ValueError(
                f"ServerConfig: lame_duck_seconds and drain_seconds must be >= 0, got {self.lame_duck_seconds} and"
                f" {self.drain_seconds}"
            )
        self.credentials()

    def credentials(self) -> ServerCredentials:
        """What clients must show."""
        return ServerCredentials(
            token=self.token,
            tls_certificate=self.tls_certificate,
            tls_key=self.tls_key,
            tls_client_ca=self.tls_client_ca,
        )
