"""Ids and vectors of a slot: the user's ids, in order, from one moment, in memory and in files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import monolith as ml
from contracts.engines import stores_of
from monolith.errors import InvalidArgumentError, NotFoundError
from monolith.nn import slot_vectors
from monolith.nn.slot_vectors import write_npz
from nn.conftest import StoreFactory

IDS = {
    "raw": torch.tensor([2**48 - 1, 0, 7, 300, 12]),
    "v2": ml.ids.pack_v2(9, torch.tensor([2**48 - 1, 0, 7, 300, 12])),
    "any": torch.tensor([-(2**63), 2**63 - 1, -1, 0, 2**48]),
    "int64": torch.tensor([-(2**63), 2**63 - 1, -1, 0, 2**48]),
}


def trained(store: StoreFactory | None = None, layout: str = "raw", dim: int = 3) -> ml.Embeddings:
    """Two slots that share a table where the layout lets them, a third of the first one's rows."""
    item = ml.Slot(dim, id_layout=layout, number=9 if layout == "v2" else None)  # type: ignore[arg-type]
    emb = ml.Embeddings({"item": item, "user": ml.Slot(dim), "seen": ml.Slot(shares="item")}, store=store)
    ids = IDS[layout]
    emb({"item": ids, "user": torch.arange(5), "seen": ids}).concat().sum().backward()
    emb.step()
    return emb


@pytest.mark.parametrize("layout", IDS)
def test_ids_are_the_users_sorted_and_vectors_are_what_lookup_reads(make_store: StoreFactory, layout: str) -> None:
    emb = trained(make_store, layout)
    ids, vectors = emb.vectors("item")
    assert ids.tolist() == sorted(IDS[layout].tolist())
    assert ids.dtype == torch.int64
    assert vectors.dtype == torch.float32
    assert torch.equal(vectors, emb.lookup("item", ids).cpu())
    assert not vectors.eq(0).all(dim=1).any()
    user, of_user = emb.vectors("user")
    assert user.tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(of_user, emb.lookup("user", user).cpu())


def test_a_slot_that_shares_has_the_rows_of_the_other() -> None:
    emb = trained()
    for one, other in zip(emb.vectors("seen"), emb.vectors("item"), strict=True):
        assert torch.equal(one, other)


def test_rows_of_several_owners_come_in_one_order() -> None:
    with stores_of("three servers here") as make:
        emb = trained(make)
        assert emb.vectors("item").ids.tolist() == sorted(IDS["raw"].tolist())


def test_vectors_are_a_copy_of_one_point_in_time() -> None:
    emb = trained()
    ids, vectors = emb.vectors("item")
    before = vectors.clone()
    emb({"item": ids, "user": ids, "seen": ids}).concat().sum().backward()
    emb.step()
    assert torch.equal(vectors, before)
    assert not torch.equal(emb.vectors("item").vectors, before)


def test_a_slot_without_rows_has_an_empty_answer(tmp_path: Path) -> None:
    emb = ml.Embeddings({"item": ml.Slot(3)})
    ids, vectors = emb.vectors("item")
    assert (ids.shape, vectors.shape) == ((0,), (0, 3))
    for name in ("v.parquet", "v.npz"):
        assert emb.export_vectors("item", tmp_path / name) == 0
    assert pq.read_table(tmp_path / "v.parquet").num_rows == 0
    assert np.load(tmp_path / "v.npz")["vectors"].shape == (0, 3)


def test_an_unknown_slot_is_named_with_those_there_are(tmp_path: Path) -> None:
    for call in (lambda: trained().vectors("itm"), lambda: trained().export_vectors("itm", tmp_path / "v.npz")):
        with pytest.raises(InvalidArgumentError, match=r"slot 'itm' does not exist; the slots are \['item', 'user'"):
            call()


@pytest.mark.parametrize("held", [1, 2, 1 << 20], ids=lambda rows: f"{rows}-rows-at-once")
def test_files_hold_what_memory_holds_however_few_rows_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    monkeypatch.setattr(slot_vectors, "_BATCH_BYTES", held * 4 * 3)
    emb = trained()
    ids, vectors = emb.vectors("item")
    assert emb.export_vectors("item", tmp_path / "item.parquet") == 5
    assert emb.export_vectors("item", tmp_path / "item.npz") == 5
    file = pq.ParquetFile(tmp_path / "item.parquet")
    assert file.num_row_groups == -(-5 // held)
    table = file.read()
    assert table["id"].to_numpy().tolist() == ids.tolist()
    assert table["vector"].to_pylist() == vectors.tolist()
    assert table.schema.field("vector").type.list_size == 3
    with np.load(tmp_path / "item.npz") as loaded:
        assert np.array_equal(loaded["ids"], ids.numpy())
        assert np.array_equal(loaded["vectors"], vectors.numpy())
        head = json.loads(str(loaded["head"]))
    assert head == {"slot": "item", "dim": 3, "slices": [3], "step": 1, "rows": 5}
    assert json.loads(table.schema.metadata[b"monolith"]) == head
    assert sorted(path.name for path in tmp_path.iterdir()) == ["item.npz", "item.parquet"]


def test_an_unknown_format_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"expected one of \.parquet, \.npz, got '\.csv'"):
        trained().export_vectors("item", tmp_path / "item.csv")
    with pytest.raises(NotFoundError, match=r"no/item\.npz': cannot be written"):
        trained().export_vectors("item", tmp_path / "no" / "item.npz")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_pyarrow_raises_an_error_that_suggests_alternatives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'monolith-torch\[parquet\]', or write a \.npz file"):
        trained().export_vectors("item", tmp_path / "item.parquet")
    assert list(tmp_path.iterdir()) == []
    assert trained().export_vectors("item", tmp_path / "item.npz") == 5


def test_training_continues_and_can_be_cut_again_while_a_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emb = trained()
    rows = []

    def slow_write(*args: object) -> None:
        rows.append(len(emb.vectors("item").ids))  # a second cut: the first one was given back
        write_npz(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(slot_vectors, "writer_for", lambda path: slow_write)
    assert emb.export_vectors("item", tmp_path / "item.npz") == 5
    assert rows == [5]


def test_any_int64_leaves_and_comes_in_as_it_was_given(tmp_path: Path) -> None:
    given = torch.tensor([-(2**63), -1, 0, 2**48 - 1, 2**48, 2**63 - 1])
    emb = ml.Embeddings({"user": ml.Slot(2), "item": ml.Slot(2), "raw": ml.Slot(2, id_layout="raw")})
    assert len(emb.tables) == 1
    vectors = torch.arange(12.0).view(6, 2)
    assert emb.assign("user", given, vectors) == 6
    emb.assign("item", given, -vectors)
    emb.assign("raw", given[2:4], vectors[2:4])
    for name, sign in (("user", 1), ("item", -1)):
        found = emb.vectors(name)
        assert found.ids.tolist() == given.tolist()
        assert torch.equal(found.vectors, sign * vectors)
        assert torch.equal(emb.lookup(name, given), sign * vectors)
    assert emb.vectors("raw").ids.tolist() == given[2:4].tolist()


def test_padding_has_no_row() -> None:
    emb = ml.Embeddings({"user": ml.Slot(2, padding_id=-1)})
    with pytest.raises(InvalidArgumentError, match="ids must not be its padding_id, -1"):
        emb.assign("user", torch.tensor([1, -1]), torch.ones(2, 2))
    assert emb.num_rows == 0
