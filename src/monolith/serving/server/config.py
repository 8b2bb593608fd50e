"""Configuration of a server: ports, authentication, and limits."""

from __future__ import annotations

from dataclasses import field

from monolith.config import Config, config, require_positive
from monolith.rpc import ServerCredentials
from monolith.serving.request_log.log import RequestLogConfig  # noqa: TC001 - a field of a config
from monolith.serving.server.request_queue import RequestQueueConfig

LOOPBACK = "127.0.0.1"


@config
class LimitsConfig(Config):
    """Limits for the size and duration of requests."""

    body_bytes: int = 16 << 20
    """Maximum size of the body of a request."""
    examples: int = 10_000
    """Maximum number of examples (candidates) of a request."""
    json_depth: int = 32
    """Maximum nesting depth of JSON."""
    connections: int = 1024
    """Maximum number of open HTTP connections; at most three quarters of the file descriptors of the process. Beyond
    it, the oldest connection without a request in progress is closed; if there is none, the new one is answered 503 and
    closed."""
    concurrent_rpcs: int = 256
    """Maximum number of concurrent gRPC calls; further ones are answered RESOURCE_EXHAUSTED."""
    head_seconds: float = 10.0
    """Timeout for the head of an HTTP request, and between two requests of a connection."""
    body_seconds: float = 10.0
    """Timeout for the body."""
    write_seconds: float = 10.0
    """Timeout for the client to read the answer."""
    request_seconds: float = 10.0
    """Timeout for an answer, unless the client requests a shorter one."""

    def __post_init__(self) -> None:
        require_positive(self, "body_bytes", "examples", "json_depth", "connections", "concurrent_rpcs")
        require_positive(self, "head_seconds", "body_seconds", "write_seconds", "request_seconds")


@config
class ServerConfig(Config):
    """Configuration of a server."""

    host: str = LOOPBACK
    """Interface to listen on; ``0.0.0.0`` or ``::`` for all. Default: this machine only."""
    port: int | None = 0
    """Port of HTTP; 0: a free one, None: no HTTP."""
    grpc_port: int | None = None
    """Port of gRPC; 0: a free one, None: no gRPC."""
    metrics_port: int | None = None
    """Port of Prometheus metrics; 0: a free one, None: no metrics."""
    token: str | None = field(default=None, repr=False)
    """A secret that clients must send: ``Authorization: Bearer <token>``. Health probes need none."""
    tls_certificate: str | None = None
    """File with the server's certificate chain, PEM; given together with its key. Turns TLS on."""
    tls_key: str | None = field(default=None, repr=False)
    """File with the private key of the certificate, PEM."""
    tls_client_ca: str | None = None
    """File with the authorities whose certificates clients must show, PEM."""
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    queue: RequestQueueConfig = field(default_factory=RequestQueueConfig)
    request_log: RequestLogConfig | None = None
    """Settings of the request log; None: requests are not logged."""
    lame_duck_seconds: float = 0.0
    """How long the server keeps serving after a stop request, while not ready, so that load balancers can deregister
    it."""
    drain_seconds: float = 30.0
    """Timeout for draining admitted requests before the server exits."""

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
        """Credentials that clients must present."""
        return ServerCredentials(
            token=self.token,
            tls_certificate=self.tls_certificate,
            tls_key=self.tls_key,
            tls_client_ca=self.tls_client_ca,
        )
