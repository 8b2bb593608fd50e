"""Dumps of the original become rows of slots, found by the numbers in their ids."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import monolith as ml
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.nn import import_dump
from monolith.nn.embeddings.merge import original_table_names
from monolith.tables import HashTable, Segment, TableConfig, TableGroup
from monolith.tables.formats.entry_dump import export_entry_dump, export_group_entry_dump
from monolith.testing import ReferenceStore

ADAGRAD = ml.row_optimizers.Adagrad(learning_rate=0.1, initial_accumulator_value=0.5)
SIGNATURES = torch.tensor([1, 2, 2**48 - 1])


def dumped(base: Path, *names: str, number: int = 201) -> torch.Tensor:
    """Files of a group with these tables, each with rows of one slot and one row of slot 999; the ids of the slot."""
    group = TableGroup({name: TableConfig([Segment(2, optimizer=ADAGRAD)], name=name) for name in names})
    ids = ml.ids.pack_v2(number, SIGNATURES)
    for name in names:
        group[name].apply_gradients(ids, torch.ones(3, 2), time=7000)
        group[name].apply_gradients(ml.ids.pack_v2(999, SIGNATURES[:1]), torch.ones(1, 2), time=7000)
    export_group_entry_dump(group, base)
    return ids


def model(**slots: ml.Slot) -> ml.Embeddings:
    return ml.Embeddings(slots or {"user": ml.Slot(2, number=201)}, ADAGRAD)


def test_rows_are_found_by_the_number_of_the_slot_with_their_state_and_time(tmp_path: Path) -> None:
    ids = dumped(tmp_path / "dump", *original_table_names(["user"]))
    emb = model()
    report = import_dump(emb, tmp_path / "dump")
    assert (report.rows, report.rows_by_slot, report.other_rows, report.ignored_tables) == (4, {"user": 3}, 1, ())
    assert emb.vectors("user").ids.tolist() == SIGNATURES.tolist()
    rows = TableGroup.of_store(emb.store)["2-adagrad"].lookup_rows(ids)
    assert rows.time.tolist() == [7000] * 3
    assert rows.state.view(torch.float32).tolist() == [[1.5, 1.5]] * 3


def test_ids_that_carry_their_slot_are_looked_up_as_they_are(tmp_path: Path) -> None:
    ids = dumped(tmp_path / "dump", *original_table_names(["user"]))
    emb = model(user=ml.Slot(2, id_layout="v2", number=201))
    import_dump(emb, tmp_path / "dump")
    assert emb.vectors("user").ids.tolist() == ids.tolist()


def test_tables_of_other_names_are_mapped_by_slot_and_the_rest_is_ignored(tmp_path: Path) -> None:
    dumped(tmp_path / "dump", "one", "two")
    emb = model()
    with pytest.raises(InvalidArgumentError, match=r"it has tables \['one', 'two'\].*tables=\{'name in the dump'"):
        import_dump(emb, tmp_path / "dump")
    with pytest.raises(InvalidArgumentError, match="slot 'itm' does not exist"):
        import_dump(emb, tmp_path / "dump", tables={"two": "itm"})
    with pytest.raises(InvalidArgumentError, match=r"expected \['three'\]"):
        import_dump(emb, tmp_path / "dump", tables={"three": "user"})
    assert emb.num_rows == 0
    report = import_dump(emb, tmp_path / "dump", tables={"two": "user"})
    assert (report.rows, report.ignored_tables) == (4, ("one",))


def test_a_slot_under_another_number_is_reported_without_rows(tmp_path: Path) -> None:
    dumped(tmp_path / "dump", "t")
    emb = model(user=ml.Slot(2, number=5), seen=ml.Slot(shares="user"))
    report = import_dump(emb, tmp_path / "dump", tables={"t": "user"})
    assert (report.rows_by_slot, report.other_rows) == ({"user": 0, "seen": 0}, 4)


def test_slots_that_share_rows_count_the_same_ones(tmp_path: Path) -> None:
    dumped(tmp_path / "dump", "t")
    emb = model(user=ml.Slot(2, number=201), seen=ml.Slot(shares="user"))
    report = import_dump(emb, tmp_path / "dump", tables={"t": "user"})
    assert (report.rows_by_slot, report.other_rows) == ({"user": 3, "seen": 3}, 1)


def test_files_of_a_single_table_belong_to_the_only_one_or_to_that_of_a_slot(tmp_path: Path) -> None:
    table = HashTable(TableConfig([Segment(2, optimizer=ADAGRAD)], name="t"))
    table.apply_gradients(torch.tensor([-5, 2**60]), torch.ones(2, 2))
    export_entry_dump(table, tmp_path / "one")
    emb = model(hashed=ml.Slot(2, id_layout="any"))
    assert import_dump(emb, tmp_path / "one").rows_by_slot == {"hashed": 2}
    assert emb.vectors("hashed").ids.tolist() == [-5, 2**60]
    two = model(hashed=ml.Slot(2, id_layout="any"), user=ml.Slot(3))
    with pytest.raises(InvalidArgumentError, match=r"of a single table, the model has .*tables=\{'': 'a slot of it'\}"):
        import_dump(two, tmp_path / "one")
    assert import_dump(two, tmp_path / "one", tables={"": "hashed"}).rows_by_slot == {"hashed": 2, "user": 0}


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"no valid sharded files for .*nothing"):
        import_dump(model(), tmp_path / "nothing")


def test_rows_of_other_engines_are_refused_with_the_way_out(tmp_path: Path) -> None:
    emb = ml.Embeddings({"user": ml.Slot(2)}, store=ReferenceStore)
    with pytest.raises(FailedPreconditionError, match=r"got ReferenceStore; use a model with a LocalStore, save it"):
        import_dump(emb, tmp_path / "dump")
