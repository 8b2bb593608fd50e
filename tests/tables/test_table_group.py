"""Many tables in one call do what each would do alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monolith.tables import HashTable, Segment, TableConfig, TableGroup
from monolith.tables.initializers import Ones
from monolith.tables.row_optimizers import Adagrad, Sgd

CONFIGS = {
    "user": TableConfig(
        [Segment(2, optimizer=Sgd(learning_rate=0.5)), Segment(1, optimizer=Adagrad(learning_rate=0.1))]
    ),
    "item": TableConfig([Segment(4, initializer=Ones(), optimizer=Adagrad(learning_rate=0.2))]),
    "tag": TableConfig([Segment(1, optimizer=Sgd(learning_rate=1.0))]),
}
IDS = st.lists(st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1), max_size=20)


def test_tables_are_ordered_by_name() -> None:
    group = TableGroup(CONFIGS)
    assert group.names == ("item", "tag", "user")
    assert list(group) == ["item", "tag", "user"]
    assert "tag" in group
    assert len(group) == 3
    assert group["item"].name == "item"
    assert group.schema.names == group.names
    assert "tag: 0 rows" in repr(group)


@given(batches=st.lists(st.dictionaries(st.sampled_from(sorted(CONFIGS)), IDS), max_size=4), dedup=st.booleans())
def test_a_group_learns_as_its_tables_would_alone(batches: list[dict[str, list[int]]], *, dedup: bool) -> None:
    group = TableGroup(CONFIGS)
    alone = {name: HashTable(config) for name, config in CONFIGS.items()}
    rng = np.random.default_rng(0)
    for step, batch in enumerate(batches):
        ids = {name: np.array(keys, np.int64) for name, keys in batch.items()}
        grads = {
            name: rng.standard_normal((len(keys), group[name].dim)).astype(np.float32) for name, keys in ids.items()
        }
        together = group.apply_gradients(ids, grads, step=step, time=step, dedup=dedup)
        apart = [alone[name].apply_gradients(ids[name], grads[name], step=step, time=step, dedup=dedup) for name in ids]
        assert together.updated == sum(result.updated for result in apart)
        rows = group.lookup(ids)
        for name, keys in ids.items():
            assert np.array_equal(rows[name], alone[name].lookup(keys))
    for name, table in alone.items():
        assert len(group[name]) == len(table)


def test_an_empty_call_does_nothing() -> None:
    group = TableGroup(CONFIGS)
    assert group.lookup({}) == {}
    assert group.apply_gradients({}, {}).updated == 0
    assert group.lookup({"user": torch.zeros(0, 3, dtype=torch.int64)})["user"].shape == (0, 3, 3)


def test_each_table_answers_in_the_kind_and_shape_of_its_request() -> None:
    rows = TableGroup(CONFIGS).lookup({"user": torch.zeros(2, 2, dtype=torch.int64), "tag": np.zeros(3, np.int64)})
    assert isinstance(rows["user"], torch.Tensor)
    assert isinstance(rows["tag"], np.ndarray)
    assert rows["user"].shape == (2, 2, 3)
    assert rows["tag"].shape == (3, 1)


def test_learning_rates_may_be_named_for_some_tables() -> None:
    group = TableGroup(CONFIGS)
    ones = {"user": [[1.0, 1.0, 1.0]], "tag": [[1.0]]}
    group.apply_gradients({"user": [1], "tag": [1]}, ones, learning_rates={"user": [2.0, 0.0]})
    assert group["user"].lookup([1]).tolist() == [[-2.0, -2.0, 0.0]]
    assert group["tag"].lookup([1]).item() == -1.0


def test_times_may_be_given_per_table_and_id() -> None:
    group = TableGroup(CONFIGS)
    ids = {"tag": np.array([1, 2]), "user": np.array([7])}
    grads = {"tag": np.ones((2, 1), np.float32), "user": np.ones((1, 3), np.float32)}
    group.apply_gradients(ids, grads, time={"tag": np.array([5, 6]), "user": 9})
    assert group["tag"].lookup_rows([1, 2]).time.tolist() == [5, 6]
    assert group["user"].lookup_rows([7]).time.tolist() == [9]


def test_plan_read_and_apply_work_on_all_tables_in_one_call() -> None:
    group, plain = TableGroup(CONFIGS), TableGroup(CONFIGS)
    ids = {"item": torch.tensor([1, 2, 1]), "tag": torch.tensor([1])}
    grads = {"item": torch.ones(3, 4), "tag": torch.ones(1, 1)}
    plan = group.plan(ids)
    values = group.read(plan)
    assert values.shape == (2 * 4 + 1,)
    flat = torch.cat(
        [
            torch.full((4,), float(count)) if key != 1 or count == 2 else torch.ones(1)
            for key, count in zip(plan.unique_ids.tolist(), plan.counts.tolist(), strict=True)
        ]
    )
    group.apply(plan, flat, time=4, learning_rates={"tag": [3.0]})
    plain.apply_gradients(ids, grads, time=4, learning_rates={"tag": [3.0]})
    for name, keys in ids.items():
        assert torch.equal(group[name].lookup(keys), plain[name].lookup(keys))


def test_a_table_of_a_group_shares_its_rows() -> None:
    group = TableGroup(CONFIGS)
    group["user"].assign([3], [[1.0, 2.0, 3.0]])
    group.assign_add({"user": [3]}, {"user": [[1.0, 1.0, 1.0]]})
    assert group.lookup({"user": [3]})["user"].tolist() == [[2.0, 3.0, 4.0]]
    assert group["user"].apply_gradients([3], [[0.0, 0.0, 1.0]]).updated == 1
    assert len(group["item"]) == 0
    assert group.stats()["user"]["rows"] == 1
    group.clear()
    assert len(group["user"]) == 0


def test_a_config_takes_the_name_it_is_listed_under() -> None:
    group = TableGroup({"user": TableConfig([Segment(1)], name="other")})
    assert group["user"].config.name == "user"


@pytest.mark.parametrize("name", ["user", "item"])
def test_equal_ids_of_two_tables_are_two_rows(name: str) -> None:
    group = TableGroup(CONFIGS)
    group[name].assign([5], [[1.0] * group[name].dim])
    others = [other for other in group if other != name]
    assert all(5 not in group[other] for other in others)


def test_reinitialize_returns_1_for_old_rows_0_for_new_ones_and_minus_1_for_a_missing_table(
    caplog: pytest.LogCaptureFixture,
) -> None:
    group = TableGroup({"user": TableConfig([Segment(1)]), "item": TableConfig([Segment(1)])})
    group["item"].assign([5], [[0.5]])
    assert group.reinitialize("item", torch.tensor([[5, 6]]), time=7).tolist() == [[1, 0]]
    assert group["item"].lookup_rows([5, 6]).time.tolist() == [7, 7]
    assert caplog.text == ""
    status = group.reinitialize("items", np.array([[5, 6]]))
    assert (status.tolist(), status.dtype) == ([[-1, -1]], np.int8)
    assert "no table 'items'; it has item, user" in caplog.text
    assert (len(group["user"]), len(group["item"])) == (0, 2)
