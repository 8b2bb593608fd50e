"""What holds for every dense optimizer: its formula, its list of parameters, gradients it cannot take, precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from monolith.errors import InvalidArgumentError
from optim.cases import OPTIMIZERS, gradients, make, reference, run, run_reference

NAMES = sorted(OPTIMIZERS)
SHAPES: list[tuple[int, ...]] = [(), (1,), (7,), (3, 5), (2, 3, 4), (6, 1, 5), (0,), (0, 3)]
STEPS = 14


def start(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(99)
    return torch.randn(shape, generator=generator).bfloat16().to(dtype).requires_grad_()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_float64_follows_the_formula(name: str, shape: tuple[int, ...]) -> None:
    param, grads = start(shape, torch.float64), gradients(shape, STEPS)
    expected = run_reference(reference(name), param, grads)
    run(make(name, [param]), param, grads)
    torch.testing.assert_close(param.detach(), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_float32_stays_close_to_the_formula(name: str, shape: tuple[int, ...]) -> None:
    param, grads = start(shape), gradients(shape, STEPS)
    expected = run_reference(reference(name), param, grads)
    run(make(name, [param]), param, grads)
    torch.testing.assert_close(param.detach().double(), expected, rtol=2e-4, atol=2e-5)


rates = st.floats(0, 1, exclude_max=True)


@given(
    ada_decay=rates, mom_decay=rates, epsilon=st.floats(1e-8, 1), weight_decay=st.floats(0, 2), use_v2=st.booleans(),
    learning_rate=st.floats(0, 10), seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=60)
def test_adamom_follows_its_formula_for_any_options(seed: int, **options: float) -> None:
    _compare_on_three_steps("adamom", seed, options)


@given(
    beta1=rates, beta2=rates, epsilon=st.floats(1e-8, 1), weight_decay=st.floats(0, 2),
    use_v2=st.booleans(), learning_rate=st.floats(0, 10), seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=60)
def test_rmsprop_follows_its_formula_for_any_options(seed: int, **options: float) -> None:
    _compare_on_three_steps("rmsprop", seed, options)


def _compare_on_three_steps(name: str, seed: int, options: dict[str, Any]) -> None:
    param, grads = start((3,), torch.float64), gradients((3,), 3, seed)
    expected = run_reference(reference(name, **options), param, grads)
    run(make(name, [param], **options), param, grads)
    torch.testing.assert_close(param.detach(), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_a_list_of_parameters_moves_as_each_would_alone(name: str) -> None:
    shapes: list[tuple[int, ...]] = [(4, 3), (4,), (), (300, 2), (0, 2), (4, 3)]
    together = [start(shape) for shape in shapes]
    optimizer = make(name, together)
    grads = [gradients(shape, STEPS, seed) for seed, shape in enumerate(shapes)]
    for step in range(STEPS):
        for param, own in zip(together, grads, strict=True):
            param.grad = own[step].clone()
        optimizer.step()
    for param, shape, own in zip(together, shapes, grads, strict=True):
        alone = start(shape)
        run(make(name, [alone]), alone, own)
        assert torch.equal(alone, param)


@pytest.mark.parametrize("name", NAMES)
def test_mixed_precisions_in_one_group_do_not_disturb_each_other(name: str) -> None:
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.float32, torch.float16]
    together = [start((3, 2), dtype) for dtype in dtypes]
    optimizer = make(name, together)
    grads = gradients((3, 2), STEPS)
    for grad in grads:
        for param in together:
            param.grad = grad.to(param.dtype)
        optimizer.step()
    for param, dtype in zip(together, dtypes, strict=True):
        alone = start((3, 2), dtype)
        run(make(name, [alone]), alone, grads)
        assert torch.equal(alone, param)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_short_floats_are_computed_in_float32_and_rounded_once_per_step(name: str, dtype: torch.dtype) -> None:
    param, wide = start((4, 3), dtype), start((4, 3))
    optimizer, wide_optimizer = make(name, [param]), make(name, [wide])
    for grad in gradients((4, 3), STEPS):
        with torch.no_grad():
            wide.copy_(param)
        run(wide_optimizer, wide, [grad])
        run(optimizer, param, [grad])
        assert torch.equal(param, wide.to(dtype))
    tensors = [value for value in optimizer.state[param].values() if isinstance(value, Tensor)]
    assert {tensor.dtype for tensor in tensors} == {torch.float32}


@pytest.mark.parametrize("name", NAMES)
def test_strides_of_a_parameter_do_not_matter(name: str) -> None:
    straight, grads = start((5, 4)), gradients((5, 4), STEPS)
    turned = straight.detach().clone().T.contiguous().T.requires_grad_()
    strided = torch.zeros(5, 8)[:, ::2].copy_(straight.detach()).requires_grad_()
    assert not turned.is_contiguous()
    assert not strided.is_contiguous()
    for param in (straight, turned, strided):
        run(make(name, [param]), param, grads)
    torch.testing.assert_close(turned, straight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(strided, straight, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_left_as_they_were(name: str) -> None:
    param = start((3, 2))
    optimizer = make(name, [param])
    grad = gradients((3, 2), 1)[0]
    param.grad = grad.clone()
    optimizer.step()
    assert torch.equal(param.grad, grad)


@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_without_a_gradient_stays_and_has_no_state(name: str) -> None:
    moved, frozen = start((3,)), start((3,))
    before = frozen.detach().clone()
    optimizer = make(name, [moved, frozen])
    run(optimizer, moved, gradients((3,), 2))
    assert torch.equal(frozen, before)
    assert not torch.equal(moved, before)
    assert frozen not in optimizer.state


@pytest.mark.parametrize("name", NAMES)
def test_no_gradient_at_all_is_no_error(name: str) -> None:
    param = start((3,))
    before = param.detach().clone()
    make(name, [param]).step()
    assert torch.equal(param, before)


@pytest.mark.parametrize("name", NAMES)
def test_a_sparse_gradient_is_refused_before_anything_moves(name: str) -> None:
    dense, embedding = start((3,)), torch.nn.Embedding(10, 4, sparse=True)
    optimizer = make(name, [{"params": [dense]}, {"params": embedding.parameters()}])
    before = [dense.detach().clone(), embedding.weight.detach().clone()]
    (dense.sum() + embedding(torch.tensor([1, 1, 3])).sum()).backward()
    with pytest.raises(InvalidArgumentError, match=r"shape \(10, 4\) has a sparse gradient.*use sparse=False") as error:
        optimizer.step()
    assert isinstance(error.value, ValueError)
    assert type(optimizer).__name__ in str(error.value)
    assert torch.equal(dense, before[0])
    assert torch.equal(embedding.weight, before[1])


@pytest.mark.parametrize("name", NAMES)
def test_a_closure_is_called_once_with_gradients_and_its_loss_is_returned(name: str) -> None:
    param = start((3,))
    optimizer = make(name, [param])
    calls = []

    def closure() -> Tensor:
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        loss = (param * param).sum()
        torch.autograd.backward(loss)
        return loss

    before = param.detach().clone()
    with torch.no_grad():
        loss = optimizer.step(closure)
    assert calls == [True]
    assert loss.item() == pytest.approx((before * before).sum().item())
    assert not torch.equal(param, before)
    assert optimizer.step() is None


@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_that_is_not_a_number_shows_in_its_own_element_only(name: str) -> None:
    param = start((3,))
    optimizer = make(name, [param])
    run(optimizer, param, [torch.tensor([1.0, float("nan"), 2.0])])
    assert param.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("name", NAMES)
def test_it_trains_a_small_model(name: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    x = torch.randn(256, 4)
    y = x[:, :1] * x[:, 1:2] - x[:, 2:3]
    learning_rate = {"shampoo": 0.1}.get(name, 0.005)
    optimizer = make(name, model.parameters(), learning_rate, **({} if name == "shampoo" else {"weight_decay": 0.0}))
    losses = []
    for _ in range(300):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64])
@pytest.mark.parametrize("name", NAMES)
def test_parameters_that_are_not_real_are_refused(name: str, dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=r"parameters must be real floating-point tensors, got torch\."):
        make(name, [torch.zeros(2, dtype=dtype)])
