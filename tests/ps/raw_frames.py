"""Frames as bytes, after docs/formats/frames.md, for peers that do not behave."""

from __future__ import annotations

import struct

from monolith import _core

__all__ = ["HEADER_BYTES", "question", "text", "token_and_words"]

HEADER_BYTES = 40


def text(content: bytes) -> bytes:
    """As heads have it."""
    return struct.pack("<I", len(content)) + content


def token_and_words(token: bytes, words: bytes) -> bytes:
    """The head of a greeting."""
    return text(token) + text(words)


def question(
    kind: int,
    head: bytes,
    body: bytes = b"",
    *,
    call: int = 1,
    version: int = _core.FRAME_VERSION,
    head_bytes: int | None = None,
    body_bytes: int | None = None,
) -> bytes:
    """A frame; sizes that are given lie."""
    front = struct.pack(
        "<4sHHQQII",
        b"MMLF",
        version,
        kind,
        call,
        len(body) if body_bytes is None else body_bytes,
        len(head) if head_bytes is None else head_bytes,
        0,
    )
    return front + struct.pack("<II", _core.crc32c(front), 0) + head + body
