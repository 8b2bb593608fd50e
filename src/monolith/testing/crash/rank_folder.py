"""The folder by which a synchronous run that is disturbed and the process that disturbs it know of each other."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["RankFolder"]

_OPTIONS = "options.json"


@dataclass(frozen=True, slots=True)
class RankFolder:
    """Files by which ranks say how far they are, and are told how far they may go."""

    path: Path

    @property
    def model_dir(self) -> Path:
        """Of the run."""
        return self.path / "model"

    def begin(self, options: dict[str, Any], params: dict[str, Any], *, timeout_seconds: float) -> None:
        """Before the first start."""
        (self.path / "told").mkdir(parents=True)
        content = {"options": options, "params": params, "timeout_seconds": timeout_seconds}
        (self.path / _OPTIONS).write_text(json.dumps(content), encoding="utf-8")

    def allow(self, place: int) -> None:
        """Ranks may train batches below this place of the input."""
        new = self.path / "limit.new"
        new.write_text(str(place), encoding="utf-8")
        new.rename(self.path / "limit")

    def allowed(self) -> int:
        """How far they may go."""
        return int((self.path / "limit").read_text(encoding="utf-8"))

    def read_options(self) -> dict[str, Any]:
        """What `begin` was given."""
        content: dict[str, Any] = json.loads((self.path / _OPTIONS).read_text(encoding="utf-8"))
        return content

    def log_of(self, launch: int, restart: int, rank: int) -> Path:
        """Where a rank tells what it does."""
        return self.path / "told" / f"{launch:04d}-{restart:04d}-{rank:02d}.jsonl"
