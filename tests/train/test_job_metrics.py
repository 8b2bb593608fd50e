"""What a worker emits about its job."""

from __future__ import annotations

from monolith.observe import HeartBeat, MetricClient, MetricRecorder
from monolith.testing import FakeClock
from monolith.train import ReportingConfig, TrainerConfig
from monolith.train.roles.worker import JobMetrics

CONFIG = TrainerConfig(model_name="ranker", reporting=ReportingConfig(submit_time=4_990, cluster_type="tide"))


def test_the_chief_reports_once_how_long_the_processes_took_to_start() -> None:
    recorder, clock = MetricRecorder(), FakeClock(now=5_000)
    for index in (1, 0):
        metrics = JobMetrics(CONFIG, index, clock=clock, metrics=MetricClient("m", recorder=recorder))
        metrics.containers_ready()
        clock.advance(100)
        metrics.containers_ready()
    elapsed = recorder.timer("m.container_ready_elapsed_time.all", {"model_name": "ranker", "cluster_type": "tide"})
    assert (elapsed.count, elapsed.sum) == (1, 110)


def test_nothing_is_reported_without_a_submission_time() -> None:
    recorder = MetricRecorder()
    metrics = JobMetrics(TrainerConfig(), 0, clock=FakeClock(), metrics=MetricClient("m", recorder=recorder))
    metrics.containers_ready()
    assert recorder.read() == []


def test_a_worker_reports_how_often_it_restarted() -> None:
    recorder = MetricRecorder()
    metrics = JobMetrics(CONFIG, 3, clock=FakeClock(), metrics=MetricClient("m", recorder=recorder))
    for count in (1, 2):
        metrics.failed_over(count)
    timer = recorder.timer("m.worker_failover_cnt", {"model_name": "ranker", "worker_index": 3})
    assert (timer.count, timer.sum) == (2, 3)


def test_the_heart_beats_before_there_is_a_session() -> None:
    recorder, clock = MetricRecorder(), FakeClock(now=1_000)
    with HeartBeat(clock, metrics=MetricClient("m", recorder=recorder)) as heart:
        assert recorder.gauge("m.training_heart_beat", {"type": "running"}) == 1_000
        assert heart.every_seconds == 30
        clock.advance(30)
    assert recorder.gauge("m.training_heart_beat", {"type": "stopped"}) == 1_030
