"""Selects the requests that go to a canary version."""

from __future__ import annotations

import hashlib
import random
from typing import NamedTuple


class Choice(NamedTuple):
    """A version, by its number or by its current label."""

    version: int | None = None
    label: str | None = None

    def __str__(self) -> str:
        return f"version {self.version}" if self.label is None else f"label {self.label!r}"


class Canary(NamedTuple):
    """The share of the requests without a version that goes to a canary, and its version.

    >>> canary = Canary(Choice(version=6), 0.25)
    >>> sum(canary.takes("ranker", f"user-{number}") for number in range(1000))
    274
    >>> wider = canary._replace(share=0.5)
    >>> all(wider.takes("ranker", each) for each in map(str, range(1000)) if canary.takes("ranker", each))
    True
    """

    target: Choice
    share: float
    """From 0 to 1."""

    def takes(self, model: str, request_id: str | None) -> bool:
        """Returns whether the canary gets a request: deterministic for an id, random without one.

        A larger share includes the ids of a smaller one. The name of the model is part of the hash, so that the
        canaries of several models do not all get the same users.
        """
        if request_id is None:
            return random.random() < self.share  # noqa: S311 - not security
        said = f"{model}\0{request_id}".encode("utf-8", "surrogateescape")
        digest = hashlib.blake2b(said, digest_size=8).digest()
        return int.from_bytes(digest, "big") < self.share * 2**64
