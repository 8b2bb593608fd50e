"""Access control of the controller service and of parameter servers: an optional token, and optional TLS.

A token travels as metadata, ``authorization: Bearer <token>``.
"""

from __future__ import annotations

import hmac
import importlib
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from monolith import _core, environment
from monolith.errors import OpError

if TYPE_CHECKING:
    from collections.abc import Iterable

_log = logging.getLogger(__name__)

FrameAddress: TypeAlias = "tuple[str, int] | tuple[str, int, _core.TlsContext]"
"""Host and port of a frame server, and the client's side of TLS if that port speaks it."""

_HEADER = "authorization"
TUNNEL_COST = 7
"""CPU of a batch through a tunnel, compared to plain sockets; benchmarks/RESULTS.md."""
_FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"


def load_grpc(*, who: str = "the controller service", extra: str = "control") -> Any:
    """Returns the gRPC package, imported on first use. If it is missing, the error names `who` and `extra`."""
    # gRPC's fork support starts threads in the child, which abort it if other threads were inside gRPC: the processes
    # of a data loader would die. Without fork support a child has no gRPC, as it has no other threads.
    if environment.get(_FORK_SUPPORT) is None:
        environment.put(_FORK_SUPPORT, "false")
    try:
        return importlib.import_module("grpc")
    except ModuleNotFoundError as err:
        message = f"{who} needs grpcio; run: pip install 'monolith-torch[{extra}]'"
        raise ModuleNotFoundError(message, name=err.name) from err


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerCredentials:
    """Credentials that a server requires of callers and presents to them. Without any, every client may call."""

    token: str | None = field(default=None, repr=False)
    """A secret that callers must present."""
    tls_certificate: str | Path | None = None
    """File with the server's certificate chain, PEM; given together with its key."""
    tls_key: str | Path | None = field(default=None, repr=False)
    """File with the private key of the certificate, PEM."""
    tls_client_ca: str | Path | None = None
    """File with the authorities that callers' certificates must come from, PEM; None: no client certificates."""

    def __post_init__(self) -> None:
        _require_token(self.token)
        _require_pair(self.tls_certificate, self.tls_key)
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("credentials: tls_client_ca is for TLS; give tls_certificate and tls_key too")

    @property
    def knows_callers(self) -> bool:
        """Whether callers must authenticate."""
        return self.token is not None or self.tls_client_ca is not None

    def accepts(self, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
        """Returns whether a call with this metadata has the right token. Compares in constant time."""
        if self.token is None:
            return True
        shown = [value for name, value in metadata if name == _HEADER and isinstance(value, str)]
        expected = _bearer(self.token).encode()
        return len(shown) == 1 and hmac.compare_digest(shown[0].encode("utf-8", "surrogateescape"), expected)

    def grpc_credentials(self) -> Any | None:
        """Returns the TLS credentials for gRPC, or None for plain text."""
        if self.tls_certificate is None or self.tls_key is None:
            return None
        chain = [(_read(self.tls_key), _read(self.tls_certificate))]
        authorities = None if self.tls_client_ca is None else _read(self.tls_client_ca)
        return load_grpc().ssl_server_credentials(chain, authorities, require_client_auth=authorities is not None)

    def frame_tls(self) -> _core.TlsContext | None:
        """Returns TLS for the frame port. None: plain text, or the core has no TLS here, which is logged."""
        if self.tls_certificate is None:
            return None
        return _frame_tls(True, self.tls_certificate, self.tls_key, self.tls_client_ca)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientCredentials:
    """Credentials that a client presents, and the authorities that it trusts."""

    token: str | None = field(default=None, repr=False)
    """The server's secret."""
    tls_ca: str | Path | None = None
    """File with the authorities that the server's certificate must come from, PEM; enables TLS."""
    tls_certificate: str | Path | None = None
    """File with a client certificate, for servers that require one; given together with its key."""
    tls_key: str | Path | None = field(default=None, repr=False)
    """File with the private key of the client certificate."""

    def __post_init__(self) -> None:
        _require_token(self.token)
        _require_pair(self.tls_certificate, self.tls_key)
        if self.tls_certificate is not None and self.tls_ca is None:
            raise ValueError("credentials: tls_certificate of a caller needs tls_ca, which turns TLS on")

    def metadata(self) -> list[tuple[str, str]]:
        """Returns the metadata of every call."""
        return [] if self.token is None else [(_HEADER, _bearer(self.token))]

    def grpc_credentials(self) -> Any | None:
        """Returns the TLS credentials for gRPC, or None for plain text."""
        if self.tls_ca is None:
            return None
        own = [None if path is None else _read(path) for path in (self.tls_key, self.tls_certificate)]
        return load_grpc().ssl_channel_credentials(_read(self.tls_ca), *own)

    def frame_tls(self) -> _core.TlsContext | None:
        """Returns TLS for frame ports. None: plain text, or the core has no TLS here, which is logged."""
        if self.tls_ca is None:
            return None
        return _frame_tls(False, self.tls_certificate, self.tls_key, self.tls_ca)


def _frame_tls(is_server: bool, *paths: str | Path | None) -> _core.TlsContext | None:
    certificate, key, authorities = ("" if path is None else str(path) for path in paths)
    try:
        return _core.TlsContext(is_server=is_server, certificate=certificate, key=key, authorities=authorities)
    except (OpError, ValueError) as error:
        _log.warning(
            "%s. Batches go through the control port instead, which takes about %d times the CPU", error, TUNNEL_COST
        )
        return None


def _bearer(token: str) -> str:
    return f"Bearer {token}"


def _read(path: str | Path) -> bytes:
    return Path(path).read_bytes()


def _require_token(token: str | None) -> None:
    if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token != ""):
        raise ValueError("credentials: a token is printable ASCII without blanks around it, and not empty")


def _require_pair(certificate: object, key: object) -> None:
    if (certificate is None) != (key is None):
        raise ValueError("credentials: tls_certificate and tls_key are given together")
