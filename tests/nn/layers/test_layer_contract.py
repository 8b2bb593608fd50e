"""What every layer does: compile, take batches of nothing, learn in every weight, survive being copied and saved."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from monolith.nn import layers
from nn.layers.arrays import randomized
from nn.layers.layer_cases import CASES, Case, Inputs, flat_tensors

BATCH = 5
GRAD_NORM = "GradNorm"  # takes losses, not activations: has tests of its own

DIFFER = ("BatchNorm", "Dense counting", "ExpertGate", "MLP with", "MMoE", "SNR", "iRazor")
"""Layers that compute something else in training than in evaluation."""
all_cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
has_batch = pytest.mark.parametrize(
    "case", [case for case in CASES if case.name != "HardConcrete"], ids=lambda case: case.name
)


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(0)
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def leaves(inputs: Inputs) -> list[Tensor]:
    tensors = [tensor for each in inputs for tensor in (each if isinstance(each, list) else [each])]
    return [tensor for tensor in tensors if isinstance(tensor, Tensor) and tensor.is_floating_point()]


def strided(value: object) -> object:
    """The same numbers with other strides."""
    if isinstance(value, list):
        return [strided(each) for each in value]
    if not isinstance(value, Tensor) or value.ndim == 0:
        return value
    return torch.stack([value, value], dim=-1)[..., 0]


def test_every_layer_has_a_case() -> None:
    classes = {
        value.__name__
        for value in vars(layers).values()
        if isinstance(value, type) and issubclass(value, nn.Module) and value.__module__.startswith("monolith.")
    }
    assert {type(case.make()).__name__ for case in CASES} == classes - {GRAD_NORM}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "is_training"),
    [
        *(pytest.param(case, True, id=f"training-{case.name}") for case in CASES),
        *(pytest.param(case, False, id=f"evaluation-{case.name}") for case in CASES if case.name.startswith(DIFFER)),
    ],
)
def test_compiles_as_one_graph_and_computes_the_same(case: Case, is_training: bool) -> None:
    layer = case.make().double().train(is_training)
    twin = copy.deepcopy(layer)
    inputs = case.inputs(BATCH)
    torch.manual_seed(1)
    expected = flat_tensors(layer(*inputs))
    torch.manual_seed(1)
    got = flat_tensors(torch.compile(twin, fullgraph=True, backend="eager")(*inputs))
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(dict(twin.state_dict()), dict(layer.state_dict()))


@has_batch
@pytest.mark.parametrize("is_training", [False, True], ids=["evaluation", "training"])
def test_a_batch_of_no_rows_gives_no_rows_and_no_change(case: Case, is_training: bool) -> None:
    layer = case.make().double().train(is_training)
    before = copy.deepcopy(layer.state_dict())
    results = flat_tensors(layer(*case.inputs(0)))
    shapes = [list(tensor.shape) for tensor in flat_tensors(layer(*case.inputs(BATCH)))]
    assert [list(tensor.shape) for tensor in results] == [[0, *shape[1:]] for shape in shapes]
    layer = case.make().double().train(is_training)
    layer.load_state_dict(before)
    layer(*case.inputs(0))
    torch.testing.assert_close(dict(layer.state_dict()), dict(before))


@has_batch
def test_gradients_of_a_batch_of_no_rows_are_zero(case: Case) -> None:
    layer = case.make().double()
    total = torch.stack([tensor.sum() for tensor in flat_tensors(layer(*case.inputs(0)))]).sum()
    if not total.requires_grad:
        return  # a layer without weights
    torch.autograd.backward(total)
    for parameter in layer.parameters():
        assert parameter.grad is None or not parameter.grad.any()


@all_cases
def test_every_weight_gets_a_finite_gradient(case: Case) -> None:
    layer = case.make().double()
    inputs = case.inputs(BATCH)
    for tensor in leaves(inputs):
        tensor.requires_grad_()
    results = flat_tensors(layer(*inputs))
    assert all(bool(torch.isfinite(tensor).all()) for tensor in results)
    torch.autograd.backward(torch.stack([(tensor * torch.rand_like(tensor)).sum() for tensor in results]).sum())
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
    for tensor in leaves(inputs):
        assert tensor.grad is not None
        assert torch.isfinite(tensor.grad).all()


@all_cases
def test_gradients_are_those_of_finite_differences(case: Case) -> None:
    layer = randomized(case.make()).eval()  # no bias of 0, where an activation may have a kink
    inputs = case.inputs(2)
    tensors = leaves(inputs)
    names = [name for name, _ in layer.named_parameters()]
    weights = [parameter.detach().clone().requires_grad_() for parameter in layer.parameters()]

    def call(*values: Tensor) -> tuple[Tensor, ...]:
        given, own = values[: len(tensors)], values[len(tensors) :]
        replaced = iter(given)
        swapped = tuple(
            [next(replaced) for _ in each]
            if isinstance(each, list)
            else next(replaced)
            if isinstance(each, Tensor) and each.is_floating_point()
            else each
            for each in inputs
        )
        result = torch.func.functional_call(layer, dict(zip(names, own, strict=True)), swapped)
        return tuple(flat_tensors(result))

    variables = [tensor.detach().clone().requires_grad_() for tensor in tensors] + weights
    assert torch.autograd.gradcheck(call, variables, fast_mode=True)


@has_batch
def test_strides_of_the_input_do_not_matter(case: Case) -> None:
    layer = case.make().double().eval()
    inputs = case.inputs(BATCH)
    expected = flat_tensors(layer(*inputs))
    got = flat_tensors(layer(*(strided(each) for each in inputs)))
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@has_batch
def test_a_row_does_not_depend_on_the_other_rows_of_its_batch(case: Case) -> None:
    layer = case.make().double().eval()
    inputs = case.inputs(BATCH)

    def second_row(value: object) -> object:
        if isinstance(value, list):
            return [second_row(each) for each in value]
        return value[1:2] if isinstance(value, Tensor) else value

    whole = flat_tensors(layer(*inputs))
    alone = flat_tensors(layer(*(second_row(each) for each in inputs)))
    torch.testing.assert_close(alone, [tensor[1:2] for tensor in whole], rtol=1e-10, atol=1e-12)


@all_cases
def test_copies_and_saved_states_compute_the_same(case: Case) -> None:
    layer = case.make().double()
    inputs = case.inputs(BATCH)
    results = flat_tensors(layer(*inputs))
    if results[0].requires_grad:
        torch.autograd.backward(torch.stack([tensor.sum() for tensor in results]).sum())
    twin = copy.deepcopy(layer).eval()
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    restored = case.make().double().eval()
    restored.load_state_dict(torch.load(file, weights_only=True))
    expected = flat_tensors(layer.eval()(*inputs))
    torch.testing.assert_close(flat_tensors(twin(*inputs)), expected, rtol=0, atol=0)
    torch.testing.assert_close(flat_tensors(restored(*inputs)), expected, rtol=0, atol=0)


@has_batch
def test_computes_in_bfloat16(case: Case) -> None:
    layer = case.make().bfloat16().eval()

    def small(value: object) -> object:
        if isinstance(value, list):
            return [small(each) for each in value]
        return value.bfloat16() if isinstance(value, Tensor) and value.is_floating_point() else value

    results = flat_tensors(layer(*(small(each) for each in case.inputs(BATCH))))
    assert {tensor.dtype for tensor in results} == {torch.bfloat16}
    assert all(bool(torch.isfinite(tensor).all()) for tensor in results)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@all_cases
def test_computes_the_same_on_cuda(case: Case) -> None:
    layer = case.make().double().eval()
    inputs = case.inputs(BATCH)

    def moved(value: object) -> object:
        if isinstance(value, list):
            return [moved(each) for each in value]
        return value.cuda() if isinstance(value, Tensor) else value

    expected = flat_tensors(layer(*inputs))
    got = [tensor.cpu() for tensor in flat_tensors(layer.cuda()(*(moved(each) for each in inputs)))]
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)
