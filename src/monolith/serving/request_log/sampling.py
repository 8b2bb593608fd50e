"""Samples requests for the log, and generates ids for requests without one."""

from __future__ import annotations

import hashlib
import secrets

__all__ = ["LONGEST_ID", "is_sampled", "request_id_of"]

LONGEST_ID = 256
"""Maximum bytes of a request id; a longer one is replaced by a generated id."""
_SCALE = 1 << 64


def request_id_of(given: bytes | None) -> bytes:
    """Returns the id given by the client, or a unique generated one."""
    if given and len(given) <= LONGEST_ID:
        return given
    return secrets.token_hex(16).encode()


def is_sampled(request_id: bytes, share: float) -> bool:
    """Returns whether a request is in the sampled share; a larger share includes the requests of a smaller one.

    The result depends only on the id, so that all servers sample the same requests and the parts of a request stay
    together.

    >>> sum(is_sampled(b"request-%d" % number, 0.25) for number in range(1000))
    245
    """
    drawn = hashlib.blake2b(request_id, digest_size=8, person=b"request-log").digest()
    return int.from_bytes(drawn, "little") < share * _SCALE
