"""Any int64 is an id of any slot, by default: it has a row of its own, and keeps it through everything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import monolith as ml
from contracts.engines import StoreFactory, stores_of
from monolith.errors import FailedPreconditionError, InvalidArgumentError
from monolith.tables.snapshot import restore, save

SGD = ml.row_optimizers.Sgd(learning_rate=1.0)
EDGES = [-(2**63), -(2**48), -1, 0, 1, 2**48 - 1, 2**48, 2**54, 2**63 - 1]
DAY = 86400


def slot(dim: int = 2, **options: Any) -> ml.Slot:
    return ml.Slot(dim, initializer=ml.initializers.Zeros(), **options)


def make(*names: str, store: Any = None, **options: Any) -> ml.Embeddings:
    return ml.Embeddings({name: slot(**options) for name in names}, SGD, store=store)


def teach(emb: ml.Embeddings, **wanted: dict[int, float]) -> None:
    """Lets the rows of some ids of some slots, which begin with zeros, become these numbers."""
    for name, values in wanted.items():
        batch = {each: ml.Ragged.from_lists([[]] * len(values)) for each in emb.slots}
        x = emb({**batch, name: torch.tensor(list(values))})
        (x[name].sum(dim=1) * torch.tensor([-value for value in values.values()])).sum().backward()
        emb.step()


def values(emb: ml.Embeddings, name: str, ids: list[int]) -> list[float]:
    found: list[float] = emb.lookup(name, torch.tensor(ids))[:, 0].tolist()
    return found


@pytest.fixture(params=["local", "three servers here"])
def make_store(request: pytest.FixtureRequest) -> Iterator[StoreFactory]:
    """Builds a store with one owner of all rows, or with three."""
    with stores_of(request.param) as factory:
        yield factory


def test_equal_ids_of_slots_in_one_table_have_rows_of_their_own(make_store: StoreFactory) -> None:
    emb = make("user", "item", "tag", store=make_store)
    assert list(emb.tables) == ["2-sgd"]
    for place, name in enumerate(emb.slots):
        teach(emb, **{name: {number: 100.0 * place + n + 1 for n, number in enumerate(EDGES)}})
    assert emb.num_rows == 3 * len(EDGES)
    for place, name in enumerate(emb.slots):
        assert values(emb, name, EDGES) == [100.0 * place + n + 1 for n in range(len(EDGES))]
    assert values(emb, "user", [-2, 2**48 + 1]) == [0.0, 0.0]


def test_ids_of_two_passes_are_one_step_and_one_norm() -> None:
    emb = make("user", "item")
    for _ in range(2):
        x = emb({"user": torch.tensor([-1, 2**60]), "item": torch.tensor([-1, -1])})
        x.concat().sum().backward()
    assert emb.grad_norm().item() == pytest.approx((2 * 2 * 2**2 + 2 * 4**2) ** 0.5)
    emb.step()
    assert values(emb, "user", [-1, 2**60]) == [-2.0, -2.0]
    assert values(emb, "item", [-1]) == [-4.0]


def test_days_and_counts_are_those_of_the_slot() -> None:
    emb = ml.Embeddings({"short": slot(expire_days=1), "long": slot(), "rare": slot(min_count=2)}, SGD)
    for seconds in (1, 2, 3):
        x = emb({name: torch.tensor([-7]) for name in emb.slots}, time=seconds)
        x.concat().sum().backward()
        emb.step()
    assert [values(emb, name, [-7]) for name in emb.slots] == [[-3.0], [-3.0], [-1.0]]
    assert emb.evict(now=2 * DAY) == 1
    assert [values(emb, name, [-7]) for name in emb.slots] == [[0.0], [-3.0], [-1.0]]


# What was saved


def test_rows_that_were_saved_as_raw_are_those_of_the_default(tmp_path: Path) -> None:
    before = make("user", "item", id_layout="raw")
    teach(before, user={0: 1.0, 2**48 - 1: 2.0}, item={0: 3.0})
    save(before.store, tmp_path / "rows")
    after = make("user", "item")
    assert restore(after.store, tmp_path / "rows").rows == {"2-sgd": 3}
    after.load_state_dict(before.state_dict())
    assert values(after, "user", [0, 2**48 - 1]) == [1.0, 2.0]
    assert values(after, "item", [0]) == [3.0]
    teach(after, item={-1: 4.0})
    save(after.store, tmp_path / "rows")
    with pytest.raises(
        (FailedPreconditionError, InvalidArgumentError), match=r"2-sgd.*slot number .*id_layout='int64'"
    ):
        restore(before.store, tmp_path / "rows")
    assert values(before, "user", [0]) == [1.0]


@pytest.mark.parametrize("names", [("b", "d"), ("a", "b", "c", "d", "e"), ("d",), ("e", "d", "c", "b")])
def test_slots_may_come_and_go_between_two_runs(
    tmp_path: Path, make_store: StoreFactory, names: tuple[str, ...]
) -> None:
    before = make("b", "c", "d")
    for place, name in enumerate(before.slots):
        teach(before, **{name: {number: 100.0 * place + n + 1 for n, number in enumerate(EDGES)}})
    save(before.store, tmp_path / "rows", num_files=3)
    after = make(*names, store=make_store)
    restore(after.store, tmp_path / "rows")
    after.load_state_dict(before.state_dict())
    for name in names:
        expected = values(before, name, EDGES) if name in before.slots else [0.0] * len(EDGES)
        assert values(after, name, EDGES) == expected
    teach(after, **{name: {-1: 1.0} for name in names})
    assert values(after, names[0], [-1])[0] == 1.0 + (
        values(before, names[0], [-1])[0] if names[0] in before.slots else 0.0
    )


def test_new_rows_begin_alike_whatever_other_slots_there_are() -> None:
    def first(*names: str) -> torch.Tensor:
        emb = ml.Embeddings({name: ml.Slot(4) for name in names}, SGD)
        x = emb({name: torch.tensor([-9, 2**62]) for name in names})
        (0.0 * x.concat()).sum().backward()
        emb.step()
        return emb.lookup("m", torch.tensor([-9, 2**62]))

    alone = first("m")
    assert len(set(alone.flatten().tolist())) == 8
    assert torch.equal(alone, first("a", "m", "z", "b", "c"))


def test_a_store_of_other_slots_is_refused() -> None:
    store = make("user", "item").store
    with pytest.raises(FailedPreconditionError, match=r"slots 'user': table '2-sgd' of the store takes any int64 for"):
        make("user", store=store)


@pytest.mark.parametrize("names", [("b", "d"), ("a", "b", "c", "d", "e")])
def test_rows_in_a_state_dictionary_follow_slots_that_come_and_go(names: tuple[str, ...]) -> None:
    before = make("b", "c", "d")
    for place, name in enumerate(before.slots):
        teach(before, **{name: {number: 100.0 * place + n + 1 for n, number in enumerate(EDGES)}})
    after = make(*names)
    after.load_state_dict(before.state_dict())
    for name in names:
        expected = values(before, name, EDGES) if name in before.slots else [0.0] * len(EDGES)
        assert values(after, name, EDGES) == expected
    with pytest.raises(FailedPreconditionError, match=r"ids beyond \[0, 2\^48\).*id_layout='int64'"):
        make(*names, id_layout="raw").load_state_dict(before.state_dict())


def test_vectors_come_with_the_ids_of_users_and_go_back_by_them() -> None:
    emb = make("user", "item")
    for place, name in enumerate(emb.slots):
        teach(emb, **{name: {number: 100.0 * place + n + 1 for n, number in enumerate(EDGES)}})
    found = emb.vectors("item")
    assert found.ids.tolist() == EDGES
    assert found.vectors[:, 0].tolist() == [101.0 + n for n in range(len(EDGES))]
    emb.assign("item", torch.tensor([-1, 2**60]), torch.tensor([[7.0, 7.0], [8.0, 8.0]]))
    assert values(emb, "item", [-1, 2**60, 0]) == [7.0, 8.0, 104.0]
    assert values(emb, "user", [-1, 2**60]) == [3.0, 0.0]


def test_padding_is_no_id_to_assign_a_row_to() -> None:
    emb = make("item", padding_id=-1)
    with pytest.raises(InvalidArgumentError, match=r"slot 'item': ids must not be its padding_id, -1"):
        emb.assign("item", torch.tensor([3, -1]), torch.zeros(2, 2))


# Padding


@pytest.mark.parametrize("combiner", ["sum", "mean", ml.nn.FirstN(3)], ids=["sum", "mean", "first n"])
@pytest.mark.parametrize("padding", [-1, 0, 2**62])
def test_padding_is_ignored_as_if_it_were_absent(combiner: Any, padding: int) -> None:
    lists = [[5, 6], [], [-7], [6, 5, 2**50]]
    padded = [[5, padding, 6, padding], [padding] * 4, [padding, padding, padding, -7], [6, 5, 2**50, padding]]
    outputs, rows = [], []
    for ids in (ml.Ragged.from_lists(lists), torch.tensor(padded), ml.Ragged.from_lists(padded)):
        emb = ml.Embeddings({"user": ml.Slot(2), "tags": ml.Slot(2, combiner=combiner, padding_id=padding)}, SGD)
        for _ in range(2):
            x = emb({"user": torch.arange(4), "tags": ids}, time=torch.arange(4))
            (x.concat() * torch.arange(1.0, 5.0)[:, None]).sum().backward()
            emb.step()
        outputs.append(x.concat().detach())
        rows.append(emb.lookup("tags", torch.tensor([5, 6, -7, 2**50])))
        assert emb.num_rows == 8
        assert emb.lookup("tags", torch.tensor([[padding], [5]])).shape == (2, 1, 2)
        assert emb.lookup("tags", torch.tensor([padding])).tolist() == [[0.0, 0.0]]
    for output, row in zip(outputs[1:], rows[1:], strict=True):
        assert torch.equal(output, outputs[0])
        assert torch.equal(row, rows[0])


def test_an_example_that_has_padding_alone_gives_zeros() -> None:
    emb = ml.Embeddings({"user": ml.Slot(2, padding_id=-1), "item": ml.Slot(2)}, SGD)
    batch = {"user": torch.tensor([4, -1, 4]), "item": torch.tensor([-1, -1, 2])}
    for _ in range(2):
        x = emb(batch)
        x.concat().sum().backward()
        emb.step()
    assert emb(batch)["user"][1].tolist() == [0.0, 0.0]
    assert emb(batch)["item"][1].tolist() != [0.0, 0.0]
    assert emb.num_rows == 3


def test_a_slot_that_shares_rows_has_a_padding_of_its_own() -> None:
    slots = {"item": slot(), "history": ml.Slot(shares="item", combiner="sum", padding_id=0)}
    emb = ml.Embeddings(slots, SGD)
    teach(emb, item={0: 1.0, 3: 2.0})
    x = emb({"item": torch.tensor([0]), "history": torch.tensor([[0, 3, 0]])})
    assert x["item"][0, 0].item() == 1.0
    assert x["history"][0, 0].item() == 2.0


def test_a_batch_without_padding_is_not_copied_apart() -> None:
    emb = make("tags", padding_id=-1)
    planned = emb.plan({"tags": torch.tensor([[1, 2], [3, 4]])})
    assert planned.shape.row_splits.size == 0
