"""Every example is predicted before it is learned from, by copies that are exactly as fresh as they say."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from monolith import Embeddings, Slot, Task
from monolith.data import Batch, ClickStream, SyntheticClicks
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.online import DeltaPublisher, Follower
from monolith.tables import compressors
from monolith.train import Session, Spec
from monolith.validation import (
    CopyOutcome,
    HashedIds,
    Ranker,
    SyncRule,
    validate,
)
from monolith.validation.serving_copy import ServingCopy, SyncClock

HOUR, DAY = 3600, 86_400
BEGIN = 1_700_000_000
IDS = ("user", "item", "tags", "context")
WORLD = SyntheticClicks(
    num_users=1000,
    num_items=300,
    num_tags=40,
    examples_per_day=10_000,
    item_life_days=2.0,
    user_life_days=10.0,
    drift_days=15.0,
    visitors=0.4,
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On a busy machine small operations wait for each other's threads far longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def clicks(num_examples: int, *, batch_size: int = 500, seed: int = 0) -> ClickStream:
    return ClickStream(num_examples, batch_size=batch_size, seed=seed, world=WORLD)


class Journal(Task):
    """Notes who saw which batch; predicts what its one dense weight says, which counts the steps it was trained."""

    seen: list[tuple[str, int]]

    def build(self) -> None:
        self.rows = Embeddings({"user": Slot(dim=2, compressor=compressors.Fp32())})
        self.steps = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(self.steps.weight)

    def optimizers(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.steps.parameters(), lr=1.0)

    def model_fn(self, features: Any, mode: str) -> Spec:
        number = int(features["number"][0])
        count = self.steps(torch.ones(len(features["label"]), 1)).squeeze(1)
        type(self).seen.append((mode, number))
        known = self.rows(features)["user"].sum(1)
        loss = known.sum() - count.mean()  # the gradient of the weight is -1
        return Spec(loss, predictions=(count.detach() / 1000).clamp(0, 1), label=features["label"])


def numbered(times: list[int], size: int = 2) -> list[Batch]:
    return [
        Batch(
            {
                "user": torch.arange(size) + 10 * number,
                "label": torch.tensor([0.0, 1.0] * (size // 2)),
                "req_time": torch.full((size,), time),
                "number": torch.full((size,), number),
            },
            num_rows=size,
        )
        for number, time in enumerate(times)
    ]


@pytest.fixture
def journal() -> type[Journal]:
    Journal.seen = []
    return Journal


def steps_seen(outcome: CopyOutcome) -> list[int]:
    """How many steps the weights had been trained that predicted each window, by the calibration of `Journal`."""
    return [round(window.calibration * 1000 / 2) for window in outcome.windows]


def serving_rows(store: Any) -> list[tuple[object, ...]]:
    with store.cut() as cut:
        return sorted(
            (block.bucket, int(key), int(time), bytes(row))
            for block in cut.blocks(range(1024), state=False)
            if block.kind.name == "SERVING"
            for key, time, row in zip(block.keys, block.times, block.payload, strict=True)
        )


# Predict, then train


def test_every_copy_predicts_a_batch_before_it_is_learned_from(journal: type[Journal]) -> None:
    rules = {"fresh": SyncRule(rows_seconds=0), "old": SyncRule(rows_seconds=600)}
    outcome = validate(journal, numbered([BEGIN + 60 * number for number in range(4)]), copies=rules)
    assert journal.seen == [(mode, number) for number in range(4) for mode in ("eval", "eval", "train")]
    assert outcome.examples == outcome["fresh"].total.examples == 8


def test_a_copy_has_the_weights_of_its_last_sync(journal: type[Journal]) -> None:
    times = [BEGIN + 60 * number for number in range(10)]
    rules = {
        "always": SyncRule(rows_seconds=0),
        "3 min": SyncRule(rows_seconds=180),
        "rows only": SyncRule(rows_seconds=60, dense_seconds=math.inf),
        "dense seldom": SyncRule(rows_seconds=0, dense_seconds=300),
        "dense often": SyncRule(rows_seconds=math.inf, dense_seconds=60),
        "never": SyncRule(rows_seconds=math.inf),
    }
    outcome = validate(journal, numbered(times), copies=rules, window_seconds=60, warm_up_seconds=120)
    assert steps_seen(outcome["always"]) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert steps_seen(outcome["3 min"]) == [2, 2, 2, 5, 5, 5, 8, 8]
    assert steps_seen(outcome["rows only"]) == [2] * 8
    assert steps_seen(outcome["dense seldom"]) == [2, 2, 2, 2, 2, 7, 7, 7]
    assert steps_seen(outcome["dense often"]) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert steps_seen(outcome["never"]) == [2] * 8
    assert [each.num_takes for each in outcome.values()] == [8, 3, 8, 8, 1, 1]
    assert outcome["never"].bytes_taken < outcome["3 min"].bytes_taken < outcome["always"].bytes_taken


def test_a_copy_holds_what_a_follower_of_the_log_holds_bit_for_bit(tmp_path: Path) -> None:
    make = Ranker(ids=IDS, expire_days={"user": 1, "item": 1}, min_counts={"user": 1})
    with Session(make()) as session:
        copy = ServingCopy("copy", make, session.state)
        (name,) = session.state.stores
        followed = ServingCopy("another", make, session.state).stores[name]
        publisher = DeltaPublisher(session.state.stores, str(tmp_path / "log"))
        with Follower({name: followed}, str(tmp_path / "log")) as follower:
            for number, batch in enumerate(clicks(30_000, batch_size=1000)):
                session.run(batch)
                if number % 7 == 0:
                    (rows,) = session.state.embeddings.values()
                    rows.evict()
                    copy.take_rows()
                    publisher.publish()
                    follower.catch_up()
                    assert serving_rows(copy.stores[name]) == serving_rows(followed)
            assert session.state.stores[name].stats().rows > len(serving_rows(copy.stores[name])) > 1000
        publisher.close()
        copy.stand_still()


def test_the_trained_tables_keep_nothing_for_a_copy_that_stands_still() -> None:
    with Session(Ranker(ids=["user"])()) as session:
        copy = ServingCopy("copy", Ranker(ids=["user"]), session.state)
        (store,) = session.state.stores.values()
        batches = list(clicks(2000))
        session.run(batches[0])
        copy.take_rows()
        held, taken = serving_rows(copy.stores["rows"]), copy.bytes_taken
        copy.take_rows()
        assert copy.bytes_taken == taken > 0  # nothing is taken twice
        copy.stand_still()
        session.run(batches[1])
        assert serving_rows(copy.stores["rows"]) == held
        again = store.open_reader("validation:copy")  # begins anew: nothing was remembered under its name
        assert not list(again.changes(state=False))


def test_a_frozen_copy_stands_still_while_training_continues(
    journal: type[Journal], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServingCopy, "stand_still", lambda _: journal.seen.append(("stands still", 0)))
    rules = {"never": SyncRule(rows_seconds=math.inf)}
    validate(journal, numbered([BEGIN, BEGIN + 60, BEGIN + 120]), copies=rules, warm_up_seconds=60)
    assert journal.seen[:4] == [("train", 0), ("stands still", 0), ("eval", 1), ("train", 1)]


def test_statistics_of_a_normalisation_come_with_the_weights() -> None:
    class Normalised(Journal):
        def build(self) -> None:
            super().build()
            self.norm = torch.nn.BatchNorm1d(1)

    Normalised.seen = []
    with Session(Normalised()) as session:
        copy = ServingCopy("copy", Normalised, session.state)
        model = session.state.model
        assert model is not None
        model.get_buffer("norm.running_mean").fill_(3.0)
        copy.take_dense()
        assert copy.model.get_buffer("norm.running_mean").item() == 3.0
        assert copy.model.training is False


def test_a_task_that_is_another_one_each_time_is_refused() -> None:
    class Changing(Journal):
        made = 0

        def build(self) -> None:
            super().build()
            Changing.made += 1
            if Changing.made > 1:
                self.more = Embeddings({"more": Slot(dim=1)})

    Changing.seen = []
    with pytest.raises(FailedPreconditionError, match=r"has the tables \['rows'\] and then \['more', 'rows'\]"):
        validate(Changing, numbered([BEGIN]))


def test_runs_repeat_and_leave_torch_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = validate(Ranker(ids=IDS), clicks(2000))
    assert torch.equal(torch.rand(3), expected)
    torch.manual_seed(6)
    assert validate(Ranker(ids=IDS), clicks(2000)).to_dict() == first.to_dict()
    assert validate(Ranker(ids=IDS), clicks(2000), seed=1).to_dict() != first.to_dict()


def test_the_task_provides_the_input_unless_batches_are_passed() -> None:
    class Reading(Journal):
        def input_fn(self, mode: str) -> list[Batch]:
            assert mode == "train"
            return numbered([BEGIN, BEGIN + 1, BEGIN + 2])

    Reading.seen = []
    counted: list[int] = []
    assert validate(Reading, on_batch=counted.append).examples == 6
    assert counted == [2, 2, 2]


def test_only_batches_after_the_warm_up_are_measured(journal: type[Journal]) -> None:
    batches = numbered([BEGIN, BEGIN + 99, BEGIN + 100, BEGIN + 150])
    outcome = validate(journal, batches, warm_up_seconds=99.5)
    assert outcome.examples == 8
    assert outcome["served"].total.examples == 4
    assert [number for mode, number in journal.seen if mode == "eval"] == [2, 3]


def test_intervals_count_from_where_measuring_began_and_never_go_back() -> None:
    clock = SyncClock(SyncRule(rows_seconds=10, dense_seconds=25), begin=100)
    due = [(time, *clock.due(time)) for time in (103, 109, 110, 105, 124, 125, 161)]
    assert due == [
        (103, True, True),
        (109, False, False),
        (110, True, False),
        (105, False, False),
        (124, True, False),
        (125, False, True),
        (161, True, True),
    ]


def test_expired_rows_are_evicted_by_event_time_and_the_peak_is_reported() -> None:
    make = Ranker(ids=["user", "item"], expire_days={"user": 1, "item": 1})
    kept = validate(make, clicks(40_000, batch_size=2000), evict_every_seconds=0)
    dropped = validate(make, clicks(40_000, batch_size=2000), evict_every_seconds=DAY)
    assert kept.evicted == 0 < dropped.evicted
    assert dropped.rows < kept.rows
    assert dropped.memory_bytes <= kept.memory_bytes


# What cannot be


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"copy 'batch' takes rows over once.*give warm_up_seconds"):
        validate(Journal, [], copies={"batch": SyncRule(rows_seconds=math.inf)})
    with pytest.raises(ValueError, match="at least one, got none"):
        validate(Journal, [], copies={})
    with pytest.raises(TypeError, match="copy 'x' must be a SyncRule, got 60"):
        validate(Journal, [], copies={"x": 60})
    with pytest.raises(TypeError, match="did you mean 'window_seconds'"):
        validate(Journal, [], window_second=5)
    with pytest.raises(ValueError, match="evict_every_seconds must be >= 0, got -1"):
        validate(Journal, [], evict_every_seconds=-1)
    with pytest.raises(ValueError, match="rows_seconds must be >= 0 seconds of event time, got -1"):
        SyncRule(rows_seconds=-1)
    with pytest.raises(ValueError, match="dense_seconds must be >= 0 seconds of event time, got nan"):
        SyncRule(dense_seconds=math.nan)
    with pytest.raises(ValueError, match="expire_days must name columns of ids, user, got 'item'"):
        Ranker(ids=["user"], expire_days={"item": 3})
    reason = (
        r"use the rows of 'user', so min_counts must name only 'user', got 'item'; write min_counts=\{'user': \.\.\.\}"
    )
    with pytest.raises(ValueError, match=reason):
        Ranker(ids=["user", "item"], shared=True, min_counts={"user": 2, "item": 3})
    with pytest.raises(ValueError, match="expire_days must name only 'user', got 'item'"):
        Ranker(ids=["user", "item"], shared=True, expire_days={"item": 3})
    Ranker(ids=["user", "item"], shared=True, min_counts={"user": 2}, expire_days={"user": 3})


def test_batches_must_have_times_that_do_not_decrease(journal: type[Journal]) -> None:
    (batch,) = numbered([BEGIN])
    without = Batch({name: values for name, values in batch.items() if name != "req_time"}, num_rows=2)
    with pytest.raises(InvalidArgumentError, match=r"must have the column 'req_time'.*got 'user', 'label', 'number'"):
        validate(journal, [without])
    with pytest.raises(InvalidArgumentError, match="5000 seconds earlier than a previous one; sort by 'req_time'"):
        validate(journal, numbered([BEGIN + 5000, BEGIN]))
    assert validate(journal, numbered([BEGIN + 5000, BEGIN]), disorder_seconds=5000).examples == 4


def test_a_stream_that_ends_too_early_is_rejected(journal: type[Journal]) -> None:
    with pytest.raises(InvalidArgumentError, match="nothing was measured: the stream has no examples"):
        validate(journal, [])
    with pytest.raises(InvalidArgumentError, match=f"last example is of {BEGIN}, and measuring begins at {BEGIN + 60}"):
        validate(journal, numbered([BEGIN]), warm_up_seconds=60)


def ones(*values: float) -> Tensor:
    return torch.tensor(values)


class Heads(Journal):
    returned: Any = None

    def model_fn(self, features: Any, mode: str) -> Spec:
        spec = super().model_fn(features, mode)
        spec.predictions = self.returned
        if isinstance(self.returned, dict):
            spec.label = dict.fromkeys(self.returned, spec.label)
        return spec


def test_the_measured_head_must_be_specified_where_several_exist() -> None:
    Heads.seen = []
    Heads.returned = {"click": ones(0.2, 0.9), "buy": ones(0.9, 0.2)}
    assert validate(Heads, numbered([BEGIN]), head="click")["served"].total.auc == 1.0
    assert validate(Heads, numbered([BEGIN]), head="buy")["served"].total.auc == 0.0
    with pytest.raises(InvalidArgumentError, match=r"predictions of 'click', 'buy'; set head to .* got None"):
        validate(Heads, numbered([BEGIN]))
    Heads.returned = ones(0.2, 0.9)
    with pytest.raises(InvalidArgumentError, match="head='click' selects one of several predictions"):
        validate(Heads, numbered([BEGIN]), head="click")
    Heads.returned = ones(0.2)
    with pytest.raises(FailedPreconditionError, match=r"one number for each of the 2 examples, got \[1\]"):
        validate(Heads, numbered([BEGIN]))
    Heads.returned = ones(0.2, 1.5)
    with pytest.raises(ValueError, match=r"must be in \[0, 1\]"):
        validate(Heads, numbered([BEGIN]))


# The proof, small; tests/validation/test_proof_example.py has that of freshness, examples/online has both in full


@pytest.mark.slow
def test_own_rows_beat_hashed_ids_of_equal_memory_and_admission_saves_most_of_it() -> None:
    stream, measured = clicks(50_000), {"warm_up_seconds": DAY, "copies": {"served": SyncRule(rows_seconds=600)}}
    all_ids = validate(Ranker(ids=IDS), stream, **measured)
    own = Ranker(ids=IDS, min_counts={"user": 1}, expire_days={"user": 5, "item": 2}, filter_capacity=20_000)
    small = validate(own, stream, evict_every_seconds=DAY, **measured)
    assert small.memory_bytes < 0.6 * all_ids.memory_bytes
    assert small["served"].mean_auc > all_ids["served"].mean_auc - 0.003
    hashed = HashedIds(columns=IDS, rows=small.memory_bytes // own.bytes_per_bare_row)
    arrays = validate(Ranker(ids=IDS, shared=True), stream.map(hashed), **measured)
    assert arrays.rows <= hashed.rows
    assert arrays["served"].mean_auc < small["served"].mean_auc - 0.001
