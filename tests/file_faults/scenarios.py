"""Ways in which a save changes a directory."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_STEPS = 3
"""Trained before the first checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One save."""

    has_checkpoint: bool = True
    """Whether the directory has one of step 3 already."""
    same_step: bool = False
    """Whether the save replaces it."""
    max_to_keep: int | None = None
    """1: the one of step 3 goes behind the save."""
    background: bool = False


SCENARIOS = {
    "first": Scenario(has_checkpoint=False),
    "only one kept": Scenario(max_to_keep=1),
    "in the background": Scenario(max_to_keep=1, background=True),
    "same step": Scenario(same_step=True),
}
