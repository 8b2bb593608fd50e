"""The flags of the TPU runner as one config; ``monolith tpu`` has a flag for each."""

from __future__ import annotations

from typing import Final

from monolith.config import Config, config, require_at_least

MODES: Final = ("train", "eval", "train_and_eval")
PARTITION_STRATEGIES: Final = ("mod", "div")


@config
class TpuConfig(Config):
    """Options of a run on TPUs."""

    task: str | None = None
    """``module:Class`` of a task, or a registered name."""
    model_dir: str | None = None
    """Directory of checkpoints and summaries, a folder or an fsspec URL; None: nothing is saved."""
    mode: str = "train"
    """``train`` or ``eval``; ``train_and_eval`` is a name that no runner has a meaning for, and is refused."""
    tpu: str | None = None
    """Name of the Cloud TPU that this machine is part of; None: whatever JAX finds, and no calls to the cloud."""
    gcp_project: str | None = None
    """Project of the TPU; None: that of this machine."""
    tpu_zone: str | None = None
    """Zone of the TPU; None: that of this machine."""
    tf_version: str = "nightly"
    """Runtime version to set on the Cloud TPU."""
    enable_tpu_version_config: bool = True
    """Set the version before the run, and wait until the TPU is healthy; skipped if `tpu` is not set."""
    save_checkpoints_steps: int | None = None
    """Steps between checkpoints; the task's value has priority. None: one at the end only."""
    iterations_per_loop: int = 10000
    """Steps between two looks of the host: log lines come as often, and checkpoints at ends of such loops."""
    pipeline_execution: bool = False
    """Read the rows of the next batch while this one computes: rows are one step old."""
    host_call_every_n_steps: int = 500
    """Steps between two summaries of training; 0: none."""
    enable_stopping_signals: bool = False
    """Let batches signal the end of the data: empty ones follow, and the run saves and stops on the signal."""
    cpu_test: bool = False
    """Run by JAX on the CPU, with one replica."""
    partition_strategy: str = "mod"
    """How rows are spread: ``mod``, by their ids."""
    overwrite_end_date: str = ""
    """Instead of the task's ``train.end_date``; empty: that stays."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"TpuConfig: mode must be one of {', '.join(MODES)}, got {self.mode!r}")
        require_at_least(self, 1, "iterations_per_loop")
        require_at_least(self, 0, "host_call_every_n_steps")
        if self.save_checkpoints_steps is not None:
            require_at_least(self, 1, "save_checkpoints_steps")
        if self.partition_strategy not in PARTITION_STRATEGIES:
            raise ValueError(
                f"TpuConfig: partition_strategy must be one of {', '.join(PARTITION_STRATEGIES)}, got"
                f" {self.partition_strategy!r}"
            )
        if self.partition_strategy == "div":
            raise ValueError(
                "TpuConfig: partition_strategy='div', ranges of ids side by side, is refused: tables spread rows over"
                " their buckets by the ids, which is 'mod'; leave it out"
            )
        if self.tpu is not None and "://" in self.tpu:
            raise ValueError(
                f"TpuConfig: tpu={self.tpu!r} is an address, but JAX computes on the TPUs of the machine that it runs"
                " on; start the command on the TPU VM, and give the name of the Cloud TPU, or leave it out"
            )
