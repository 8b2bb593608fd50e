"""The task of measured jobs: the DeepFM of `ps_training`, which records when each step starts."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.suites.ps.training import DeepFm, training_batches
from monolith.cli._bench.setting import Setting
from monolith.cli._bench.workload import mixed_ids
from monolith.data import GeneratedDataset
from monolith.train import current_context

if TYPE_CHECKING:
    from monolith.train import InstantiableParams, Spec

__all__ = ["JobDeepFm", "step_times"]

_TIME = struct.Struct("<d")


class JobDeepFm(DeepFm):
    """One worker of a job; its input has no end."""

    @classmethod
    def params(cls) -> InstantiableParams:
        """Returns the parameters, with sizes, and a folder for the times."""
        p = super().params()
        p.define("setting", {}, "Fields of the benchmark's setting.")
        p.define("folder", "", "Where times of steps go.")
        p.define("new_ids", False, "Whether every batch has ids that no other one has, until all rows exist.")
        return p

    def build(self) -> None:
        """Builds the model of the setting."""
        self._setting = Setting.from_json(self.p.setting)
        self.slots = [f"slot_{number}" for number in range(self._setting.features)]
        self._batches = training_batches(self._setting, self.slots)
        self._times: int | None = None
        super().build()

    def input_fn(self, mode: str) -> Any:  # noqa: ARG002 - the same for all
        """Returns the batches of the benchmark, repeated, for each worker."""
        if self.p.new_ids:
            return self.ctx.unshared(GeneratedDataset(self._new_batch))
        return self.ctx.unshared(GeneratedDataset(lambda number: self._batches[number % len(self._batches)]))

    def model_fn(self, features: Any, mode: str) -> Spec:
        """Notes the time, and computes."""
        if self._times is None:
            name = f"{current_context().worker_index}-{os.getpid()}.times"
            self._times = os.open(Path(self.p.folder) / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(self._times, _TIME.pack(time.monotonic()))
        return super().model_fn(features, mode)

    def _new_batch(self, number: int) -> dict[str, torch.Tensor]:
        """Returns new ids, until the number of rows of the setting is reached; then the first ones."""
        setting = self._setting
        per_slot = setting.large_rows // len(self.slots)
        first = number * setting.examples % max(1, per_slot)
        rows = torch.arange(first, first + setting.examples) % max(1, per_slot)
        found = {
            name: torch.from_numpy(mixed_ids((rows + slot * per_slot).numpy())) for slot, name in enumerate(self.slots)
        }
        return found | {"label": torch.zeros(setting.examples)}


def step_times(folder: Path, worker: int) -> list[float]:
    """Returns when the steps of a worker started, over all of its processes; by the clock that all processes share."""
    contents = [path.read_bytes() for path in folder.glob(f"{worker}-*.times")]
    times = [each[0] for content in contents for each in _TIME.iter_unpack(content[: len(content) // 8 * 8])]
    return sorted(times)
