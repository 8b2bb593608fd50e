"""Which changed tables can take an old snapshot, and what becomes of their rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from monolith.errors import FailedPreconditionError
from monolith.tables import HashTable, Segment, TableConfig, TableGroup, compressors, initializers, row_optimizers
from monolith.tables.snapshot import restore, save
from tables.snapshot_cases import group_state, item_config, some_ids, state_of, train, trained_group, user_config

ADAGRAD = row_optimizers.Adagrad(learning_rate=0.1, initial_accumulator_value=0.25)
ADAM = row_optimizers.Adam(beta1=0.5, beta2=0.25)


def table_of(*segments: Segment, serving: bool = False) -> HashTable:
    return HashTable(TableConfig(list(segments), name="t", serving=serving))


def saved_table(path: Path, *segments: Segment, state: bool = True) -> HashTable:
    table = table_of(*segments)
    train(table, some_ids(100))
    save(table.store, path, state=state)
    return table


def parts(table: HashTable, key: int) -> tuple[list[float], list[float]]:
    """Weights and state of one id as floats."""
    rows = table.lookup_rows(np.array([key]))
    return np.asarray(rows.weights)[0].tolist(), np.asarray(rows.state)[0].view(np.float32).tolist()


def test_another_optimizer_keeps_the_weights_and_starts_its_state_from_scratch(tmp_path: Path) -> None:
    old = saved_table(tmp_path, Segment(2, optimizer=ADAGRAD))
    new = table_of(Segment(2, optimizer=ADAM))
    report = restore(new.store, tmp_path)
    assert any("state of adagrad, adam starts from scratch" in note for note in report.notes)
    for key in some_ids(100)[:10].tolist():
        assert parts(new, key)[0] == parts(old, key)[0]
        assert parts(new, key)[1] == [0.0] * 4 + [0.5, 0.25]


def test_other_parameters_of_the_same_optimizer_keep_its_state(tmp_path: Path) -> None:
    old = saved_table(tmp_path, Segment(2, optimizer=ADAGRAD))
    new = table_of(Segment(2, optimizer=row_optimizers.Adagrad(learning_rate=9.0, initial_accumulator_value=7.0)))
    report = restore(new.store, tmp_path)
    assert report.notes == ()
    assert state_of(new) == state_of(old)


def test_an_added_segment_starts_from_its_initializer(tmp_path: Path) -> None:
    old = saved_table(tmp_path, Segment(2, optimizer=ADAGRAD))
    added = Segment(2, initializer=initializers.Constant(3.0), optimizer=ADAM)
    new = table_of(Segment(2, optimizer=ADAGRAD), added)
    report = restore(new.store, tmp_path)
    assert report.notes == ("table 't', segment 1: new, starts from its initializer",)
    for key in some_ids(100)[:10].tolist():
        weights, state = parts(old, key)
        assert parts(new, key) == ([*weights, 3.0, 3.0], state + [0.0] * 4 + [0.5, 0.25])


def test_one_of_two_segments_may_change_its_optimizer(tmp_path: Path) -> None:
    old = saved_table(tmp_path, Segment(1, optimizer=ADAM), Segment(2, optimizer=ADAGRAD))
    new = table_of(Segment(1, optimizer=row_optimizers.Sgd()), Segment(2, optimizer=ADAGRAD))
    restore(new.store, tmp_path)
    for key in some_ids(100)[:10].tolist():
        weights, state = parts(old, key)
        assert parts(new, key) == (weights, state[-2:])


@pytest.mark.parametrize(
    ("segments", "reason"),
    [
        ([Segment(2, optimizer=ADAGRAD)], "table 't': segment 1 of the snapshot .dim 3. does not exist in this table"),
        ([Segment(2), Segment(4)], "table 't', segment 1: dim 3 in the snapshot, 4 in this table"),
        ([Segment(3), Segment(2)], "table 't', segment 0: dim 2 in the snapshot, 3 in this table"),
    ],
)
def test_removed_and_resized_segments_are_refused_by_name(tmp_path: Path, segments: list[Segment], reason: str) -> None:
    saved_table(tmp_path, Segment(2, optimizer=ADAGRAD), Segment(3))
    new = table_of(*segments)
    train(new, some_ids(10, seed=4))
    before = state_of(new)
    with pytest.raises(FailedPreconditionError, match=reason):
        restore(new.store, tmp_path)
    assert state_of(new) == before


def test_unknown_tables_are_refused_unless_they_are_to_be_ignored(tmp_path: Path) -> None:
    group = trained_group()
    save(group.store, tmp_path)
    only_user = TableGroup({"user": user_config()})
    with pytest.raises(FailedPreconditionError, match=r"\['item'\] that this group \(\['user'\]\) does not have"):
        restore(only_user.store, tmp_path)
    report = restore(only_user.store, tmp_path, ignore_unknown_tables=True)
    assert report.ignored_tables == ("item",)
    assert state_of(only_user["user"]) == state_of(group["user"])


def test_tables_the_snapshot_does_not_have_are_empty_and_reported(tmp_path: Path) -> None:
    group = trained_group()
    save(group.store, tmp_path)
    # the new tables come before, between and behind the old ones, so that every table number changes
    names = {
        "a": item_config("a"),
        "item": item_config(),
        "j": item_config("j"),
        "user": user_config(),
        "z": user_config("z"),
    }
    larger = TableGroup(names)
    train(larger["j"], some_ids(20))
    report = restore(larger.store, tmp_path)
    assert report.missing_tables == ("a", "j", "z")
    assert {name: rows for name, rows in group_state(larger).items() if rows} == group_state(group)


def test_rows_without_state_start_their_state_from_scratch(tmp_path: Path) -> None:
    old = saved_table(tmp_path, Segment(2, optimizer=ADAGRAD), state=False)
    new = table_of(Segment(2, optimizer=ADAGRAD))
    report = restore(new.store, tmp_path)
    assert any("state not in the snapshot, adagrad starts from scratch" in note for note in report.notes)
    for key in some_ids(100)[:10].tolist():
        assert parts(new, key) == (parts(old, key)[0], [0.25, 0.25])


def test_rows_compressed_in_another_way_are_refused(tmp_path: Path) -> None:
    saved_table(tmp_path, Segment(2, compressor=compressors.Fp16()), state=False)
    for serving in (True, False):
        other = table_of(Segment(2, compressor=compressors.Bf16()), serving=serving)
        with pytest.raises(FailedPreconditionError, match="rows compressed by fp16, this table uses bf16"):
            restore(other.store, tmp_path)


def test_a_serving_table_cannot_gain_a_segment(tmp_path: Path) -> None:
    saved_table(tmp_path, Segment(2))
    with pytest.raises(FailedPreconditionError, match="only a training table restored from full rows"):
        restore(table_of(Segment(2), Segment(1), serving=True).store, tmp_path)


def test_a_full_row_may_change_its_compressor(tmp_path: Path) -> None:
    old = saved_table(tmp_path, Segment(2, optimizer=ADAGRAD, compressor=compressors.Fp16()))
    new = table_of(Segment(2, optimizer=ADAGRAD, compressor=compressors.Bf16()))
    assert restore(new.store, tmp_path).notes == ()
    assert state_of(new) == state_of(old)
