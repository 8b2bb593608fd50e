"""Answers of HTTP that are no matter of a model: a wrong path, method or size."""

from __future__ import annotations

__all__ = ["HttpError"]


class HttpError(Exception):
    """An answer with this status and sentence; the connection is closed where the rest of the request is not read."""

    def __init__(self, status: int, sentence: str, *, closes: bool = False) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.closes = closes
