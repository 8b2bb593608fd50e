"""Predictions of a trained task: over a dataset, into files, for candidate items."""

from __future__ import annotations

__all__: list[str] = []
