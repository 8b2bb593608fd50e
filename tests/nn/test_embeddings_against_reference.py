"""Any batches, any combiners, shared and merged slots: outputs and trained rows agree with a dictionary of rows."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import monolith as ml
from monolith.nn.combiners import FirstN
from nn.dictionary_embeddings import ACCUMULATOR, START, Column, DictionaryEmbeddings, Lists

RATE = 0.5
COLUMNS = {
    "user": Column("user", 2, "sum"),
    "tags": Column("tags", 3, "mean"),
    "item": Column("item", 2, "sum"),
    "mean of items": Column("item", 2, "mean"),
    "root of items": Column("item", 2, "sqrtn"),
    "history": Column("item", 2, "first_n", 2),
    "hash": Column("hash", 2, "sum"),
}
OWN_TABLE_IDS = [-(2**63), -1, 0, 1, 2**63 - 1]


def make_embeddings() -> ml.Embeddings:
    return ml.Embeddings(
        {
            "user": ml.Slot(2, initializer=ml.initializers.Constant(START)),
            "tags": ml.Slot(
                slices=[ml.Slice(2), ml.Slice(1, compressor=ml.compressors.Fp32())],
                combiner="mean",
                initializer=ml.initializers.Constant(START),
            ),
            "item": ml.Slot(2, initializer=ml.initializers.Constant(START)),
            "mean of items": ml.Slot(shares="item", combiner="mean"),
            "root of items": ml.Slot(shares="item", combiner="sqrtn"),
            "history": ml.Slot(shares="item", combiner=FirstN(2)),
            "hash": ml.Slot(2, initializer=ml.initializers.Constant(START), id_layout="any"),
        },
        ml.row_optimizers.Adagrad(learning_rate=RATE, initial_accumulator_value=ACCUMULATOR),
    )


@st.composite
def batches(draw: st.DrawFn) -> Lists:
    num_examples = draw(st.integers(0, 4))
    batch = {}
    for name in COLUMNS:
        ids = st.sampled_from(OWN_TABLE_IDS) if name == "hash" else st.sampled_from([0, 1, 2**48 - 1, 2**48, -1])
        lists = st.lists(ids, max_size=4)
        batch[name] = draw(st.lists(lists, min_size=num_examples, max_size=num_examples))
    return batch


def loss_of(outputs: dict[str, torch.Tensor], used: set[str], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    loss = torch.zeros((), requires_grad=True)
    for name in COLUMNS:
        weights = torch.randint(-3, 4, outputs[name].shape, generator=generator).float()
        if name in used:
            loss = loss + (outputs[name] * weights).sum() + outputs[name].square().sum()
    return loss


@settings(max_examples=60)
@given(st.lists(st.lists(batches(), min_size=1, max_size=2), min_size=1, max_size=3), st.data())
def test_outputs_and_rows_are_those_of_a_dictionary(steps: list[list[Lists]], data: st.DataObject) -> None:
    ours, reference = make_embeddings(), DictionaryEmbeddings(COLUMNS, RATE)
    for accumulated in steps:
        for batch in accumulated:
            used = data.draw(st.sets(st.sampled_from(list(COLUMNS)), min_size=1))
            outputs = ours({name: ml.Ragged.from_lists(lists) for name, lists in batch.items()})
            if not batch["user"]:
                assert all(len(output) == 0 for output in outputs.values())
                torch.autograd.backward(loss_of(outputs, used, 0))
                continue
            expected = reference.forward(batch)
            for name, output in outputs.items():
                torch.testing.assert_close(output, expected[name], rtol=1e-5, atol=1e-6)
            for each in (outputs, expected):
                torch.autograd.backward(loss_of(each, used, len(batch)))
        ours.step()
        reference.step()
    for (owner, key), (weights, _) in reference.rows.items():
        np.testing.assert_allclose(ours.lookup(owner, torch.tensor([key]))[0].numpy(), weights, rtol=1e-5, atol=1e-6)
    assert ours.num_rows == len(reference.rows)
    assert ours.store.stats().open_plans == 0


def test_tables_of_other_slots_do_not_shift_columns_or_rows() -> None:
    """Flat ids go by table, outputs by slot: names are chosen so that the two orders differ."""
    slots = {"z": ml.Slot(3), "a": ml.Slot(2), "m": ml.Slot(3), "b": ml.Slot(2)}
    sgd = ml.row_optimizers.Sgd(learning_rate=1.0)
    emb = ml.Embeddings(slots, sgd)
    assert emb.tables == {"2-sgd": ("a", "b"), "3-sgd": ("z", "m")}
    batch = {name: torch.tensor([number, number]) for number, name in enumerate(slots)}
    emb(batch).concat().sum().backward()
    emb.step()
    before = {name: emb.lookup(name, batch[name][:1])[0] for name in slots}
    x = emb(batch)
    assert list(x) == list(slots)
    torch.testing.assert_close(x.concat()[0], torch.cat([before[name] for name in slots]))
    (x["m"] * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    emb.step()
    for name in slots:
        moved = before[name] - emb.lookup(name, batch[name][:1])[0]
        torch.testing.assert_close(moved, torch.tensor([2.0, 4.0, 6.0]) if name == "m" else torch.zeros_like(moved))
