"""Passes over loaded graphs make them quicker and leave every bit as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from monolith.export.graph_file import DIRECT, FeatureSlice, JoinedRows, graph_from_bytes, graph_to_bytes
from monolith.export.graph_limits import GraphInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monolith.export.graph_file import LoadedGraph

_SEED = torch.manual_seed(7)
_A, _B, _M = torch.rand(3, 4) + 0.1, torch.rand(3, 4) + 0.1, torch.rand(4, 5)
_W = torch.rand(4)
SAMPLES: dict[str, list[tuple[str, tuple[Any, ...], dict[str, Any]]]] = {
    **{name: [("default", (_A,), {})] for name in ("abs", "exp", "log", "log1p", "neg", "relu", "rsqrt", "sigmoid")},
    **{name: [("default", (_A,), {})] for name in ("sqrt", "square", "tanh", "gelu", "silu", "leaky_relu", "softplus")},
    **{name: [("Tensor", (_A, _B), {}), ("Tensor", (_A, 2), {}), ("Scalar", (_A, 2.5), {})] for name in ("mul", "div")},
    **{name: [("Tensor", (_A, _B), {"alpha": 3}), ("Scalar", (_A, 2), {})] for name in ("add", "sub")},
    **{name: [("default", (_A, _B), {})] for name in ("maximum", "minimum")},
    **{name: [("default", ([_A, _B], 1), {})] for name in ("cat", "stack")},
    **{name: [("default", (_A, [1]), {}), ("default", (_A, [0, 1], True), {})] for name in ("amax", "amin")},
    "addmm": [("default", (torch.rand(5), _A, _M), {"beta": 0.5})],
    "batch_norm": [("default", (_A, _W, _W, _W, _W, False, 0.1, 1e-5, False), {})],
    "bmm": [("default", (torch.rand(2, 3, 4), torch.rand(2, 4, 5)), {})],
    "clamp": [("default", (_A, 0.2, 0.5), {}), ("default", (_A, None, 0.5), {}), ("Tensor", (_A, _B), {})],
    "expand": [("default", (torch.rand(1, 4), [3, 4]), {})],
    "flatten": [("using_ints", (torch.rand(2, 3, 4), 1), {})],
    "layer_norm": [("default", (_A, [4], _W, _W, 1e-5), {})],
    "linear": [("default", (_A, _M.T.contiguous(), torch.rand(5)), {}), ("default", (_A, _M.T.contiguous()), {})],
    "log_softmax": [("int", (_A, 1), {})],
    "logsumexp": [("default", (_A, [1]), {})],
    "matmul": [("default", (_A, _M), {})],
    "mean": [("dim", (_A, [1], True), {}), ("default", (_A,), {})],
    "mm": [("default", (_A, _M), {})],
    "permute": [("default", (torch.rand(2, 3, 4), [2, 0, 1]), {})],
    "pow": [("Tensor_Scalar", (_A, 3), {}), ("Tensor_Tensor", (_A, _B), {}), ("Scalar", (2, _A), {})],
    "prod": [("dim_int", (_A, 1), {})],
    "reshape": [("default", (_A, [4, 3]), {})],
    "select": [("int", (_A, 1, 2), {})],
    "softmax": [("int", (_A, 1), {}), ("int", (_A, 1, torch.float64), {})],
    "squeeze": [("dim", (torch.rand(3, 1), 1), {}), ("dims", (torch.rand(1, 3, 1), [0, 2]), {})],
    "sum": [("dim_IntList", (_A, [1]), {}), ("dim_IntList", (_A, [1], True), {"dtype": torch.float64})],
    "sym_size": [("int", (_A, 1), {})],
    "transpose": [("int", (_A, 0, 1), {})],
    "unsqueeze": [("default", (_A, 1), {})],
    "view": [("default", (_A, [-1]), {})],
    "where": [("self", (_A > 0.5, _A, _B), {}), ("ScalarOther", (_A > 0.5, _A, 0.0), {})],
}


@pytest.mark.parametrize("name", sorted(DIRECT))
def test_a_function_of_torch_does_what_the_operation_does(name: str) -> None:
    for overload, arguments, options in SAMPLES[name]:
        operation = getattr(getattr(torch.ops.aten, name), overload)
        expected, found = operation(*arguments, **options), DIRECT[name](*arguments, **options)
        if isinstance(expected, Tensor):
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected)
            assert found.stride() == expected.stride()
        else:
            assert found == expected


class Made(nn.Module):
    def __init__(self, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *rows: Tensor) -> tuple[Tensor]:
        return (self.call(*rows),)


def loaded(call: Callable[..., Tensor], example: Mapping[str, Tensor], *, joins_rows: bool) -> LoadedGraph:
    """What a server makes of a model, by way of the file."""
    batch = torch.export.Dim("batch")
    program = torch.export.export(
        Made(call), tuple(example.values()), dynamic_shapes=(({0: batch},) * len(example),), strict=False
    )
    places = [GraphInput("column" if name == "number" else "rows", name) for name in example]
    return graph_from_bytes(graph_to_bytes(program, places, ["y"]), origin="file 'x'", joins_rows=joins_rows)


def called(graph: LoadedGraph, values: Mapping[str, Tensor]) -> Tensor:
    def taken(place: GraphInput) -> Tensor:
        if place.kind != "joined":
            return values[place.name]
        parts = graph.joined[place.name]
        cuts = [values[cut.feature][:, cut.start : cut.end] for cut in parts.cuts]
        return torch.cat(cuts, 1) if parts.form == "concat" else torch.stack(cuts, 1)

    (found,) = graph.call(*[taken(place) for place in graph.inputs])
    return found


def rows_of(widths: list[int], num_examples: int = 3) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(num_examples)
    return {f"f{place}": torch.randn(num_examples, width, generator=random) for place, width in enumerate(widths)}


def test_rows_that_a_model_puts_side_by_side_come_as_one() -> None:
    def model(*rows: Tensor) -> Tensor:
        flat = torch.cat([each.flatten(1) for each in rows], 1)
        return flat.view(flat.shape[0], 2, 3).sum(1).relu()

    graph = loaded(model, rows_of([3, 3]), joins_rows=True)
    assert graph.inputs == (GraphInput("joined", ":joined_rows_0"),)
    assert graph.joined == {
        ":joined_rows_0": JoinedRows("concat", (FeatureSlice("f0", 0, 3), FeatureSlice("f1", 0, 3)))
    }
    values = rows_of([3, 3], 5)
    assert torch.equal(called(graph, values), model(*values.values()))


def test_a_join_of_all_rows_replaces_the_operation() -> None:
    graph = loaded(lambda *rows: torch.cat(rows, 1).relu(), rows_of([3, 3]), joins_rows=True)
    assert [node.target for node in graph.module.graph.nodes if node.op == "call_function"] == [torch.relu]
    single = loaded(lambda row: torch.cat([row], 1).relu(), rows_of([3]), joins_rows=True)
    assert torch.equal(called(single, rows_of([3])), rows_of([3])["f0"].relu())


def test_slices_and_stacks_are_joined_and_what_else_is_read_stays() -> None:
    def model(first: Tensor, second: Tensor, number: Tensor) -> Tensor:
        bias = torch.cat([first[:, :1], torch.ops.aten.slice(second, -1, 0, 1), number], 1).sum(1)
        return bias + torch.stack([first[:, 1:], second[..., -2:]], 1).prod(1).sum(1) * second.sum(1)

    example = {**rows_of([3, 3]), "number": torch.rand(3, 2)}
    graph = loaded(model, example, joins_rows=True)
    assert sorted(graph.joined.values()) == [
        JoinedRows("concat", (FeatureSlice("f0", 0, 1), FeatureSlice("f1", 0, 1))),
        JoinedRows("stack", (FeatureSlice("f0", 1, 3), FeatureSlice("f1", 1, 3))),
    ]
    assert {place.name for place in graph.inputs if place.kind != "joined"} == {"f1", "number"}
    assert torch.equal(called(graph, example), model(*example.values()))


def test_a_loader_that_cannot_join_rows_gets_the_inputs_of_the_file() -> None:
    example = rows_of([3, 3])
    graph = loaded(lambda *rows: torch.cat(rows, 1), example, joins_rows=False)
    assert graph.inputs == (GraphInput("rows", "f0"), GraphInput("rows", "f1"))
    assert graph.joined == {}
    assert torch.equal(called(graph, example), torch.cat(list(example.values()), 1))


def test_rows_that_a_model_changes_first_are_not_joined() -> None:
    def model(first: Tensor, second: Tensor) -> Tensor:
        first[:, :1].mul_(2)
        return torch.cat([first, second], 1)

    graph = loaded(model, rows_of([2, 2]), joins_rows=True)
    assert graph.joined == {}
    assert torch.equal(called(graph, rows_of([2, 2])), model(*rows_of([2, 2]).values()))


def test_infinities_and_nan_in_a_graph_are_read_as_they_were_written() -> None:
    def model(first: Tensor, second: Tensor) -> Tensor:
        masked = first.masked_fill(first < 0, float("-inf")).clamp(max=float("inf"))
        return torch.where(second < 0, float("nan"), masked)

    example = rows_of([3, 3])
    found = called(loaded(model, example, joins_rows=False), example)
    assert torch.isinf(found).any()
    assert torch.isnan(found).any()
    torch.testing.assert_close(found, model(*example.values()), rtol=0, atol=0, equal_nan=True)


def test_sequences_stay_as_they_are() -> None:
    example = {"f0": torch.rand(3, 2, 4), "f1": torch.rand(3, 4)}
    graph = loaded(lambda long, flat: torch.cat([long.flatten(1), flat], 1), example, joins_rows=True)
    assert graph.joined == {}
    assert torch.equal(called(graph, example), torch.cat([example["f0"].flatten(1), example["f1"]], 1))


step = st.tuples(
    st.sampled_from(["cat", "stack", "flatten", "slice", "sum", "dropout", "mul"]),
    st.lists(st.integers(0, 9), min_size=1, max_size=5),
    st.sampled_from([-1, 1]),
    st.integers(-3, 4),
    st.integers(-3, 4),
)


def followed(steps: list[Any], rows: list[Tensor]) -> Tensor:
    """A model of these steps: each makes a new value of those there are."""
    values = list(rows)
    for kind, places, dim, start, end in steps:
        chosen = [values[place % len(values)] for place in places]
        first = chosen[0]
        if kind == "cat":
            values.append(torch.cat([each.flatten(1) for each in chosen], dim))
        elif kind == "stack":
            values.append(torch.stack([each for each in chosen if each.shape == first.shape], dim).flatten(1))
        elif kind == "slice":
            values.append(first[:, start:end])
        elif kind == "sum":
            values.append(first.sum(-1, keepdim=True))
        elif kind == "mul":
            values.append(first * start + end)
        else:
            values.append(first.flatten(1) if kind == "flatten" else nn.functional.dropout(first, training=False))
    return torch.cat([each.flatten(1) for each in values[-3:]], 1)


@settings(max_examples=5, deadline=None)
@given(widths=st.lists(st.integers(1, 4), min_size=1, max_size=4), steps=st.lists(step, max_size=6))
def test_any_model_gives_the_same_bits(widths: list[int], steps: list[Any]) -> None:
    def model(*rows: Tensor) -> Tensor:
        return followed(steps, list(rows))

    for joins_rows in (False, True):
        graph = loaded(model, rows_of(widths), joins_rows=joins_rows)
        for num_examples in (1, 5):
            values = rows_of(widths, num_examples)
            assert torch.equal(called(graph, values), model(*values.values()))
