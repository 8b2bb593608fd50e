"""The folder by which a disturbed synchronous run and the disturbing process communicate."""

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
    """Files by which ranks report their progress, and receive its limit."""

    path: Path

    @property
    def model_dir(self) -> Path:
        """Model directory of the run."""
        return self.path / "model"

    def begin(self, options: dict[str, Any], params: dict[str, Any], *, timeout_seconds: float) -> None:
        """Sets the folder up, before the first start."""
        (self.path / "told").mkdir(parents=True)
        content = {"options": options, "params": params, "timeout_seconds": timeout_seconds}
        (self.path / _OPTIONS).write_text(json.dumps(content), encoding="utf-8")

    def allow(self, place: int) -> None:
        """Allows ranks to train batches below this position of the input."""
        new = self.path / "limit.new"
        new.write_text(str(place), encoding="utf-8")
        new.rename(self.path / "limit")

    def allowed(self) -> int:
        """Returns the limit of the ranks."""
        return int((self.path / "limit").read_text(encoding="utf-8"))

    def read_options(self) -> dict[str, Any]:
        """Returns the options given to `begin`."""
        content: dict[str, Any] = json.loads((self.path / _OPTIONS).read_text(encoding="utf-8"))
        return content

    def log_of(self, launch: int, restart: int, rank: int) -> Path:
        """Returns the path of the reports of a rank."""
        return self.path / "told" / f"{launch:04d}-{restart:04d}-{rank:02d}.jsonl"
