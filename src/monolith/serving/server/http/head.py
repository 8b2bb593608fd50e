"""Validates the head of an HTTP request against request smuggling."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SINGLE_HEADERS", "content_length_of", "why_refused"]

SINGLE_HEADERS = frozenset(
    {
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"origin",
        b"transfer-encoding",
        b"x-request-id",
        b"x-timeout-ms",
    }
)
"""Headers that may occur only once: with two, one program uses the first and another the last."""
_LENGTH_DIGITS = 19


def why_refused(headers: Mapping[bytes, bytes], version: str) -> str | None:
    """Returns why a head is rejected; None if it is valid.

    Args:
        headers: Headers with lower-case names.
        version: HTTP version.
    """
    if version != "1.0" and b"host" not in headers:
        return "the head has no host line, which HTTP/1.1 requires"
    length = headers.get(b"content-length")
    if length is not None and not (length.isdigit() and len(length) <= _LENGTH_DIGITS):
        return f"content-length must be a number of at most {_LENGTH_DIGITS} digits, got {len(length)} characters"
    encoding = headers.get(b"transfer-encoding")
    if encoding is not None and encoding.lower() != b"chunked":
        return f"transfer-encoding must be chunked, got {encoding[:80].decode('latin-1')!r}"
    return None


def content_length_of(headers: Mapping[bytes, bytes]) -> int:
    """Returns the content length, 0 if missing. REQUIRES: the head is valid."""
    return int(headers.get(b"content-length", b"0"))
