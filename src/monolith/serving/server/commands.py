"""What a server is told to do with its versions, over HTTP: who may say so, and what is asked of who does it.

Commands are under ``/v1/promotion``. They change what everybody is answered, so that a server without a token (or
certificates of clients) takes them from its own machine alone, and none that a web page there sent.
"""

from __future__ import annotations

import ipaddress
import json
from typing import TYPE_CHECKING, Any, Protocol

from monolith.errors import InvalidArgumentError, PermissionDeniedError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["VERBS", "Commands", "parse_command", "require_commander"]

VERBS = ("label", "canary", "shadow", "rollback", "resume")
_JSON = b"application/json"


class Commands(Protocol):
    """Who does what a command says; any thread may call it."""

    def describe(self, name: str | None = None) -> dict[str, Any]:
        """Versions, labels, canary and shadow of a model, or of all.

        Raises:
            NotFoundError: there is no model of that name.
        """
        ...

    def command(self, name: str, verb: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Does one of `VERBS`; returns what `describe` says of the model afterwards. It may load a version.

        Raises:
            OpError: it cannot be done; all is as before.
        """
        ...


def require_commander(client: str | None, headers: Mapping[bytes, bytes], *, knows_callers: bool) -> None:
    """Lets in who may command.

    Args:
        client: Address that the request came from.
        headers: Of the request.
        knows_callers: Whether callers had to show a token or a certificate.

    Raises:
        PermissionDeniedError: it may not; says why, and what would help.
    """
    if knows_callers:
        return
    if not _is_own_machine(client):
        raise PermissionDeniedError(
            "commands change what everybody is answered, and this server asks for no token: it takes them from its own"
            " machine alone; start it with --token_file"
        )
    if b"origin" in headers:
        raise PermissionDeniedError(
            "this server asks for no token, and takes no commands from web pages; start it with --token_file"
        )


def parse_command(body: bytes, headers: Mapping[bytes, bytes]) -> dict[str, Any]:
    """The fields of a command.

    Raises:
        InvalidArgumentError: it is no JSON object, or does not say that it is one.
    """
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
