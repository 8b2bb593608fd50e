"""A `Ragged` travels through torch as a tensor does: copies, files, trees, loaders, compiled functions."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
import torch.utils.data
from torch import nn
from torch.utils import _pytree as pytree

from monolith.tensors import Ragged

NESTED = [[[1, 2], []], [], [[3]]]
BOTH = pytest.mark.parametrize("lists", [[[7, 3], [], [9]], NESTED], ids=["rows", "rows of rows"])
NOT_TRACED = pytest.mark.skipif(
    torch.__version__.startswith("2.4."), reason="Dynamo of torch 2.4 does not trace functions that take a Ragged"
)


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch.compiler.reset()


@BOTH
def test_pickled_and_copied_rows_are_equal_and_apart(lists: list[Any]) -> None:
    ragged = Ragged.from_lists(lists)
    ragged.value_rowids()
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(ragged, protocol)).equal(ragged)  # noqa: S301 - written a moment ago
    deep = copy.deepcopy(ragged)
    assert deep.equal(ragged)
    assert deep.flat_values.data_ptr() != ragged.flat_values.data_ptr()
    assert torch.equal(deep.value_rowids(), ragged.value_rowids())
    shallow = copy.copy(ragged)
    assert shallow is not ragged
    assert shallow.values is ragged.values


@BOTH
def test_saved_rows_are_loaded_without_running_code(lists: list[Any]) -> None:
    ragged, file = Ragged.from_lists(lists), io.BytesIO()
    torch.save({"ids": ragged}, file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["ids"].equal(ragged)


@BOTH
def test_a_tree_of_rows_can_be_mapped(lists: list[Any]) -> None:
    ragged = Ragged.from_lists(lists)
    tree = {"ids": ragged, "rest": [torch.tensor([1])]}
    leaves, spec = pytree.tree_flatten(tree)
    assert len(leaves) == ragged.ragged_rank + 2
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    assert pytree.tree_unflatten(leaves, spec)["ids"].equal(ragged)
    mapped = pytree.tree_map(lambda leaf: leaf.clone(), tree)
    assert mapped["ids"].equal(ragged)
    assert mapped["ids"].flat_values is not ragged.flat_values


def test_a_tree_of_rows_reports_the_paths_of_its_leaves_and_may_hold_anything() -> None:
    ragged = Ragged.from_lists([[7], []])
    ragged.value_rowids()
    leaves, _ = pytree.tree_flatten_with_path({"ids": ragged})
    assert [pytree.keystr(path) for path, _ in leaves] == ["['ids'].values", "['ids'].row_splits"]
    names = pytree.tree_map(lambda leaf: str(leaf.dtype), ragged)
    assert repr(names) == "Ragged(values='torch.int64', row_splits='torch.int64')"


def test_row_numbers_are_not_remembered_across_a_map() -> None:
    ragged = Ragged.from_lists([[], [], [1]])
    assert ragged.value_rowids().tolist() == [2]
    first = pytree.tree_map(lambda leaf: torch.tensor([0, 1, 1, 1]) if leaf is ragged.row_splits else leaf, ragged)
    assert first.value_rowids().tolist() == [0]


def test_a_loader_hands_rows_through() -> None:
    class Batches(torch.utils.data.Dataset[Ragged]):
        def __getitem__(self, index: int) -> Ragged:
            return Ragged.from_lists([[index], [index, index]])

        def __len__(self) -> int:
            return 3

    loader = torch.utils.data.DataLoader(Batches(), batch_size=2, collate_fn=Ragged.concat)
    assert [batch.to_lists() for batch in loader] == [[[0], [0, 0], [1], [1, 1]], [[2], [2, 2]]]


@pytest.mark.slow
@NOT_TRACED
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_function_takes_and_returns_rows(backend: str) -> None:
    def step(ids: Ragged, table: torch.Tensor) -> tuple[Ragged, torch.Tensor, torch.Tensor]:
        rows = ids.with_values(table[ids.flat_values])
        pooled = table.new_zeros(ids.num_rows, table.shape[1]).index_add(0, ids.value_rowids(), rows.flat_values)
        return Ragged(ids.flat_values + 1, ids.row_splits), pooled, rows.to_padded(length=2)

    compiled = torch.compile(step, backend=backend, fullgraph=True)
    for lists in ([[1, 2], [], [0]], [[3], [1, 1], [2, 0, 1]]):
        ids = Ragged.from_lists(lists)
        tables = [torch.arange(8.0).reshape(4, 2).requires_grad_() for _ in range(2)]
        shifted, pooled, padded = compiled(ids, tables[0])
        expected_shifted, expected_pooled, expected_padded = step(ids, tables[1])
        assert shifted.equal(expected_shifted)
        assert torch.equal(pooled, expected_pooled)
        assert torch.equal(padded, expected_padded)
        torch.autograd.backward(pooled.square().sum() + padded.sum())
        torch.autograd.backward(expected_pooled.square().sum() + expected_padded.sum())
        assert tables[0].grad is not None
        assert tables[1].grad is not None
        assert torch.equal(tables[0].grad, tables[1].grad)


def test_a_compiled_function_leaves_no_row_numbers_on_its_input() -> None:
    ids = Ragged.from_lists([[1, 2], []])
    compiled = torch.compile(lambda ragged: ragged.value_rowids() + 1, backend="eager", fullgraph=True)
    assert compiled(ids).tolist() == [1, 1]
    first = ids.value_rowids()
    assert ids.value_rowids() is first


@NOT_TRACED
@BOTH
def test_an_exported_module_takes_rows(lists: list[Any]) -> None:
    class Padded(nn.Module):
        def forward(self, ids: Ragged) -> torch.Tensor:
            inner = ids.values
            return inner.value_rowids() if isinstance(inner, Ragged) else ids.to_padded(length=2)

    ids = Ragged.from_lists(lists)
    program = torch.export.export(Padded(), (ids,), strict=False)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    assert torch.equal(torch.export.load(file).module()(ids), Padded()(ids))
