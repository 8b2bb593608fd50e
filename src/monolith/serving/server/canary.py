"""Which requests go to a version that is on trial."""

from __future__ import annotations

import hashlib
import random
from typing import NamedTuple

__all__ = ["Canary", "Choice"]


class Choice(NamedTuple):
    """A version, by its number or by the label that it has at the moment."""

    version: int | None = None
    label: str | None = None

    def __str__(self) -> str:
        return f"version {self.version}" if self.label is None else f"label {self.label!r}"


class Canary(NamedTuple):
    """A share of the requests that name no version, and where they go.

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
        """Whether a request is among them: always the same for an id, and for none by chance.

        A larger share has the ids of a smaller one and more. The name of the model takes part, so that the canaries
        of several models do not all meet the same users.
        """
        if request_id is None:
            return random.random() < self.share  # noqa: S311 - nobody gains by guessing it
        said = f"{model}\0{request_id}".encode("utf-8", "surrogateescape")
        digest = hashlib.blake2b(said, digest_size=8).digest()
        return int.from_bytes(digest, "big") < self.share * 2**64
