"""Agreement of all clients of a store: its tables and their update rules, as comparable bytes."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables import TableConfig, differences, sorted_by_name

if TYPE_CHECKING:
    from collections.abc import Mapping

WIRE_VERSION = 1
"""Version of the control calls and of the frames. To change either: raise it. A client and a server of different
versions fail with a clear error, so that servers and workers are replaced together."""


def agreement_of(configs: Mapping[str, TableConfig]) -> bytes:
    """Returns canonical bytes of some tables."""
    tables = {config.name: config.to_dict() for config in sorted_by_name(configs)}
    return json.dumps({"tables": tables, "wire": WIRE_VERSION}, sort_keys=True, separators=(",", ":")).encode()


def digest_of(agreement: bytes) -> bytes:
    """Returns the digest of an agreement, for the handshake of a worker, which has to be short."""
    return hashlib.sha256(agreement).hexdigest().encode()


def configs_of(agreement: bytes) -> dict[str, TableConfig]:
    """Returns the tables of an agreement.

    Raises:
        InvalidArgumentError: the bytes are no agreement, or of another version.
    """
    try:
        content = json.loads(agreement)
        wire = content["wire"]
        configs = {str(name): TableConfig.from_dict(values) for name, values in content["tables"].items()}
        sorted_by_name(configs)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"agreement: not the configs of some tables: {error!r}") from error
    if wire != WIRE_VERSION:
        raise InvalidArgumentError(f"agreement: wire version {WIRE_VERSION} expected, got {wire!r}")
    return configs


def require_agreement(theirs: bytes, here: bytes, *, store: str) -> None:
    """Rejects a client whose tables differ from those of a server.

    Raises:
        FailedPreconditionError: the tables differ; shows the fields.
    """
    if theirs == here:
        return
    shown = differences(json.loads(here), json.loads(theirs))
    raise FailedPreconditionError(
        f"store {store!r}: the client that opened it first had other tables: {shown}. Give all clients the same"
        " tables, give this one another store name, or restart the servers"
    )
