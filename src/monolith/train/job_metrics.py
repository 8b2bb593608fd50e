"""Metrics of a worker about its job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.observe import MetricClient

if TYPE_CHECKING:
    from monolith.clock import Clock
    from monolith.train.config.trainer_config import TrainerConfig

__all__ = ["JobMetrics"]


class JobMetrics:
    """Metrics of the startup time of a job, and of the retries of a worker.

    Args:
        config: Config of the worker, with the time at which the job was submitted.
        worker_index: Index of the worker; 0 is the chief.
        clock: Current time.
        metrics: Client that emits them.
    """

    def __init__(
        self, config: TrainerConfig, worker_index: int, *, clock: Clock, metrics: MetricClient | None = None
    ) -> None:
        self._model_name = config.model_name or ""
        self._cluster_type = config.reporting.cluster_type
        self._submit_time = config.reporting.submit_time if worker_index == 0 else None
        self._worker_index = worker_index
        self._clock = clock
        self._metrics = metrics or MetricClient()

    def containers_ready(self) -> None:
        """Reports once, on the chief, how long it took until all processes were up, if the start time is set."""
        if self._submit_time is not None:
            elapsed = max(self._clock.now() - self._submit_time, 0.0)
            tags = {"model_name": self._model_name, "cluster_type": self._cluster_type}
            self._metrics.emit_timer("container_ready_elapsed_time.all", elapsed, tags)
            self._submit_time = None

    def failed_over(self, count: int) -> None:
        """Reports that a worker has restarted `count` times."""
        tags = {"model_name": self._model_name, "worker_index": self._worker_index}
        self._metrics.emit_timer("worker_failover_cnt", count, tags)
