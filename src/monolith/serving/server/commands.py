"""Promotion commands over HTTP: authorization, parsing, and the interface of their executor.

Commands are under ``/v1/promotion``. They change the answers to all clients, so that a server without a token (or
client certificates) accepts them only from its own machine, and none from web pages there.
"""

from __future__ import annotations

import ipaddress
import json
from typing import TYPE_CHECKING, Any, Protocol

from monolith.errors import InvalidArgumentError, PermissionDeniedError

if TYPE_CHECKING:
    from collections.abc import Mapping

VERBS = ("label", "canary", "shadow", "rollback", "resume")
_JSON = b"application/json"


class Commands(Protocol):
    """Executor of commands. Thread-safe."""

    def describe(self, name: str | None = None) -> dict[str, Any]:
        """Returns versions, labels, canary and shadow of a model, or of all.

        Raises:
            NotFoundError: the model does not exist.
        """

    def command(self, name: str, verb: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Executes one of `VERBS`; returns the result of `describe` for the model afterwards. May load a version.

        Raises:
            OpError: the command failed; nothing has changed.
        """


def require_commander(client: str | None, headers: Mapping[bytes, bytes], *, knows_callers: bool) -> None:
    """Checks that a client may send commands.

    Args:
        client: Address of the client.
        headers: Headers of the request.
        knows_callers: Whether callers had to show a token or a certificate.
    """
    if knows_callers:
        return
    if not _is_own_machine(client):
        raise PermissionDeniedError(
            "commands change the answers of all clients, and this server requires no token: it accepts them only from"
            " its own machine; start it with --token_file"
        )
    if b"origin" in headers:
        raise PermissionDeniedError(
            "this server requires no token, and accepts no commands from web pages; start it with --token_file"
        )


def parse_command(body: bytes, headers: Mapping[bytes, bytes]) -> dict[str, Any]:
    """Parses the fields of a command."""
    if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != _JSON:
        raise InvalidArgumentError("a command must have content-type: application/json")
    try:
        fields = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"a command must be JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InvalidArgumentError(f"a command must be a JSON object, got {type(fields).__name__}")
    return fields


def _is_own_machine(client: str | None) -> bool:
    try:
        address = ipaddress.ip_address(client or "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
