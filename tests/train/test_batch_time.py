"""Which time a batch has: its examples' newest, unless that cannot be believed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import monolith as ml
from monolith.data import BadRecords, Batch, GeneratedDataset, InRange
from monolith.errors import DataLossError, InvalidArgumentError
from monolith.hooks import EvictionHook
from monolith.train import SavingConfig, Session, Trainer, TrainerConfig
from monolith.train.input.feed import BatchClock, time_of

DAY = 86400
NOW = 1_700_000_000
WRONG = 4_102_444_800  # the year 2100


def batch_at(*times: int) -> dict[str, Any]:
    return {"req_time": torch.tensor(times)}


def test_the_newest_time_is_that_of_the_batch() -> None:
    clock = BatchClock()
    assert clock.time_of(batch_at(NOW, NOW + 60)) == NOW + 60
    assert clock.time_of(batch_at(NOW - 90 * DAY)) == NOW - 90 * DAY
    assert clock.newest == NOW + 60
    assert clock.time_of({}) is None
    assert clock.time_of({"req_time": torch.tensor([], dtype=torch.int64)}) is None
    assert time_of(batch_at(NOW, WRONG)) == WRONG


def test_an_example_dated_years_ahead_is_not_believed_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = BatchClock()
    clock.time_of(batch_at(NOW))
    with caplog.at_level(logging.WARNING):
        assert clock.time_of(batch_at(NOW + 5, NOW + 9, WRONG)) == NOW + 9
        assert clock.time_of(batch_at(NOW + 5, NOW + 9, WRONG)) == NOW + 9
    (record,) = caplog.records
    assert f"example 2 of a batch has the time {WRONG}" in record.getMessage()
    assert (clock.newest, clock.num_ahead) == (NOW + 9, 2)


def test_a_clock_resumes_from_the_time_of_another() -> None:
    assert BatchClock(NOW).time_of(batch_at(WRONG)) == NOW + DAY
    assert BatchClock().time_of(batch_at(WRONG)) == WRONG


@pytest.mark.parametrize(
    ("bad", "said"), [(1000 * NOW, r"got 1700000000000; it looks like milliseconds"), (-1, r"got -1\."), (2**62, "got")]
)
def test_what_is_no_time_names_the_example_and_the_way_out(bad: int, said: str) -> None:
    message = rf"column 'req_time': example 1 of the batch must have Unix seconds in \[0, 2\^32\), {said}"
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        BatchClock().time_of(batch_at(NOW, bad))
    assert "dataset.filter(data.InRange('req_time', 0, 2**32, bad=BadRecords(limit)))" in str(caught.value)


class Timed(ml.Task):
    """20 new ids with each of 40 batches, a minute apart; one example of the 20th batch has another time."""

    bad = NOW

    def build(self) -> None:
        self.emb = ml.Embeddings({"u": ml.Slot(dim=4, expire_days=30)})
        self.top = torch.nn.Linear(4, 1)

    def make(self, number: int) -> Batch:
        times = torch.full((20,), NOW + number * 60)
        if number == 20:
            times[17] = self.bad
        return Batch({"u": torch.arange(number * 20, number * 20 + 20), "req_time": times}, num_rows=20)

    def input_fn(self, mode: Any) -> Any:
        return GeneratedDataset(self.make, 40)

    def model_fn(self, features: Any, mode: Any) -> Any:
        return ml.train.Spec(self.top(self.emb(features)["u"]).mean())


class FarAhead(Timed):
    bad = 2**32 - 1


class Milliseconds(Timed):
    bad = 1000 * NOW


class LeavingOut(Milliseconds):
    dropped = BadRecords(limit=3)

    def input_fn(self, mode: Any) -> Any:
        return super().input_fn(mode).filter(InRange("req_time", 0, 2**32, bad=self.dropped, named_by="u"))


def train(task: type[ml.Task], folder: Path) -> Any:
    config = TrainerConfig(model_dir=str(folder), saving=SavingConfig(every_steps=10))
    return Trainer(task, config, hooks=[EvictionHook(every_steps=10)]).train()


def test_one_wrong_time_in_a_run_removes_no_row(tmp_path: Path) -> None:
    assert train(FarAhead, tmp_path).embeddings["emb"].num_rows == 800


def test_milliseconds_end_the_run_or_are_skipped_and_counted(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="example 17 of the batch must have Unix seconds"):
            train(Milliseconds, tmp_path)
    state = train(LeavingOut, tmp_path)
    assert state.global_step == 40
    assert state.embeddings["emb"].num_rows == 799
    assert "row 17 of a batch must be in [0, 4294967296), got 1700000000000 (u 417)" in LeavingOut.dropped.first[0]


def test_more_wrong_values_than_may_be_skipped_end_the_run(tmp_path: Path) -> None:
    class Strict(LeavingOut):
        dropped = BadRecords()

    with pytest.raises(DataLossError, match="column 'req_time': row 17 of a batch"):
        train(Strict, tmp_path)


def test_stamps_report_the_progress_of_the_run_and_a_resumed_clock_continues_from_it() -> None:
    with Session(FarAhead()) as session:
        session.run(FarAhead().make(0))
        session.run({"u": torch.tensor([1]), "req_time": torch.tensor([NOW - DAY])})
        assert session.state.applied[0].event_time == NOW
        state = session.state
        session.run({"u": torch.tensor([1]), "req_time": torch.tensor([WRONG])})
        assert state.applied[0].event_time == NOW + DAY


def test_an_evaluation_does_not_care_for_times() -> None:
    with Session(Milliseconds(), mode="eval") as session:
        session.run(Milliseconds().make(20))
