"""Which requests are logged, and what requests are called that bring no name along."""

from __future__ import annotations

import hashlib
import secrets

__all__ = ["LONGEST_ID", "is_sampled", "request_id_of"]

LONGEST_ID = 256
"""Bytes of a request id; a longer one is replaced by one of ours."""
_SCALE = 1 << 64


def request_id_of(given: bytes | None) -> bytes:
    """The id that a client gave, or one that nobody else has."""
    if given and len(given) <= LONGEST_ID:
        return given
    return secrets.token_hex(16).encode()


def is_sampled(request_id: bytes, share: float) -> bool:
    """Whether a request belongs to a share of all; a larger share has the requests of a smaller one, too.

    It depends on the id alone, so that all servers draw the same and the parts of a request stay together.

    >>> sum(is_sampled(b"request-%d" % number, 0.25) for number in range(1000))
    245
    """
    drawn = hashlib.blake2b(request_id, digest_size=8, person=b"request-log").digest()
    return int.from_bytes(drawn, "little") < share * _SCALE
