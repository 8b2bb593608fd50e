"""Weights of other modules become rows: what looks up an index there looks up an id here."""

from __future__ import annotations

import enum
from typing import Any

import pytest
import torch
from torch import nn

import monolith as ml
from monolith.errors import InvalidArgumentError
from monolith.nn import import_collection, import_embedding


def test_an_embedding_gives_the_same_outputs() -> None:
    source = nn.Embedding(50, 4)
    emb = ml.Embeddings({"item": ml.Slot(4)}).eval()
    assert import_embedding(emb, "item", source) == 50
    ids = torch.randint(50, (16,))
    assert torch.equal(emb({"item": ids})["item"], source(ids).detach())


@pytest.mark.parametrize("padding", [0, 7, 49])
def test_the_padding_row_is_skipped(padding: int) -> None:
    source = nn.Embedding(50, 4, padding_idx=padding)
    nn.init.normal_(source.weight)
    emb = ml.Embeddings({"item": ml.Slot(4)})
    assert import_embedding(emb, "item", source) == 49
    ids, vectors = emb.vectors("item")
    assert padding not in ids.tolist()
    assert torch.equal(vectors, source.weight.detach()[ids])


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_a_bag_gives_the_same_outputs_as_a_slot_that_combines_alike(mode: Any) -> None:
    source = nn.EmbeddingBag(50, 4, mode=mode)
    emb = ml.Embeddings({"tags": ml.Slot(4, combiner=mode)}).eval()
    import_embedding(emb, "tags", source)
    ids = torch.randint(50, (16, 3))
    torch.testing.assert_close(emb({"tags": ids})["tags"], source(ids).detach())


@pytest.mark.parametrize(("mode", "advice"), [("mean", r"Slot\(combiner='mean'\)"), ("max", "no combiner does that")])
def test_a_bag_that_combines_otherwise_is_refused_but_its_weight_is_taken(mode: Any, advice: str) -> None:
    source = nn.EmbeddingBag(5, 4, mode=mode)
    emb = ml.Embeddings({"tags": ml.Slot(4)})
    with pytest.raises(InvalidArgumentError, match=rf"'tags': it combines by ReduceSum\(\), the source by .*{advice}"):
        import_embedding(emb, "tags", source)
    assert emb.num_rows == 0
    assert import_embedding(emb, "tags", source.weight) == 5


def test_rows_get_the_ids_of_a_vocabulary() -> None:
    source = nn.Embedding(3, 2, padding_idx=0)
    ids = torch.tensor([0, 10**9, 77])
    emb = ml.Embeddings({"item": ml.Slot(2)})
    import_embedding(emb, "item", source, ids=ids)
    assert torch.equal(emb.lookup("item", ids[1:]), source.weight.detach()[1:])


def test_ids_that_do_not_fit_the_weight_are_refused() -> None:
    emb = ml.Embeddings({"item": ml.Slot(2)})
    with pytest.raises(InvalidArgumentError, match=r"ids must be \[3\], one for each row of the weight, got \[2\]"):
        import_embedding(emb, "item", nn.Embedding(3, 2), ids=torch.tensor([1, 2]))
    with pytest.raises(InvalidArgumentError, match="each id must come once"):
        import_embedding(emb, "item", nn.Embedding(3, 2, padding_idx=1), ids=torch.tensor([5, 6, 5]))
    assert emb.num_rows == 0


# torchrec


class Pooling(enum.Enum):
    """As torchrec has it."""

    SUM = "SUM"
    MEAN = "MEAN"


class TableOfCollection:
    """What is used of torchrec's `EmbeddingBagConfig`."""

    def __init__(self, name: str, features: list[str], rows: int = 20, dim: int = 4, **pooling: Pooling) -> None:
        self.name, self.feature_names, self.num_embeddings, self.embedding_dim = name, features, rows, dim
        self.__dict__.update(pooling)


class BagCollection(nn.Module):
    """What is used of torchrec's `EmbeddingBagCollection`: the same attributes, as torchrec is not needed here."""

    def __init__(self, *tables: TableOfCollection) -> None:
        super().__init__()
        self.embedding_bags = nn.ModuleDict(
            {each.name: nn.EmbeddingBag(each.num_embeddings, each.embedding_dim, mode="sum") for each in tables}
        )
        self._tables = list(tables)

    def weight_of(self, table: str) -> torch.Tensor:
        return self.embedding_bags.get_parameter(f"{table}.weight").detach()

    def embedding_bag_configs(self) -> list[TableOfCollection]:
        return self._tables


class Collection(nn.Module):
    """The same of `EmbeddingCollection`."""

    def __init__(self, *tables: TableOfCollection) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict({t.name: nn.Embedding(t.num_embeddings, t.embedding_dim) for t in tables})
        self._tables = list(tables)

    def embedding_configs(self) -> list[TableOfCollection]:
        return self._tables


def test_every_table_of_a_collection_becomes_the_rows_of_its_features() -> None:
    source = BagCollection(
        TableOfCollection("t_user", ["user"], pooling=Pooling.SUM),
        TableOfCollection("t_item", ["item", "seen"], pooling=Pooling.SUM),
    )
    emb = ml.Embeddings({"user": ml.Slot(4), "item": ml.Slot(4), "seen": ml.Slot(shares="item")})
    ids = torch.arange(20) * 1000
    assert import_collection(emb, source, ids={"t_item": ids}) == {"t_user": 20, "t_item": 20}
    assert torch.equal(emb.lookup("seen", ids), source.weight_of("t_item"))
    assert torch.equal(emb.lookup("user", torch.arange(20)), source.weight_of("t_user"))


def test_a_collection_without_bags_and_with_other_names() -> None:
    source = Collection(TableOfCollection("t", ["f_item"]))
    emb = ml.Embeddings({"item": ml.Slot(4)})
    assert import_collection(emb, source, slots={"f_item": "item"}) == {"t": 20}
    assert torch.equal(emb.lookup("item", torch.arange(20)), source.embeddings.get_parameter("t.weight").detach())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (TableOfCollection("t", ["user", "itm"]), r"'t' of the collection: its feature 'itm' is no slot"),
        (TableOfCollection("t", ["user", "item"]), r"define 'item' with Slot\(shares='user'\)"),
        (TableOfCollection("t", ["user"], dim=3), r"has dim 3, the slot 4; define it with Slot\(dim=3\)"),
        (TableOfCollection("t", ["user"], pooling=Pooling.MEAN), r"combines by ReduceSum\(\), the source by 'mean'"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_row_changes(table: TableOfCollection, message: str) -> None:
    emb = ml.Embeddings({"user": ml.Slot(4), "item": ml.Slot(4)})
    with pytest.raises(InvalidArgumentError, match=message):
        import_collection(emb, BagCollection(TableOfCollection("first", ["item"]), table))
    assert emb.num_rows == 0


def test_anything_else_is_no_collection() -> None:
    with pytest.raises(TypeError, match="got Embedding; take a single module by import_embedding"):
        import_collection(ml.Embeddings({"user": ml.Slot(4)}), nn.Embedding(3, 4))


def test_the_real_collection_has_these_attributes() -> None:
    torchrec = pytest.importorskip("torchrec", reason="needs torchrec, which has no build for every machine")
    tables = [torchrec.EmbeddingBagConfig(name="t", embedding_dim=4, num_embeddings=20, feature_names=["user"])]
    source = torchrec.EmbeddingBagCollection(tables=tables)
    emb = ml.Embeddings({"user": ml.Slot(4)})
    assert import_collection(emb, source) == {"t": 20}
    assert torch.equal(emb.lookup("user", torch.arange(20)), source.embedding_bags["t"].weight.detach())
