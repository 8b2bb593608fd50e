"""The same results on CPU and CUDA. Runs where there is a CUDA device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from monolith.optim import apply_sparse_precond, clip_by_global_norm, eigen_inverse_root, global_norm, joint_clip
from monolith.optim.preconditioner import grams
from optim.cases import OPTIMIZERS, gradients, make, run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SHAPES: list[tuple[int, ...]] = [(7,), (3, 5), (300, 40), (2, 3, 4), (), (0, 3)]


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-4), (torch.bfloat16, 0.02)], ids=str
)
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_both_devices_move_parameters_alike(name: str, dtype: torch.dtype, tolerance: float) -> None:
    ends = {device: trained(name, device, dtype) for device in ("cpu", "cuda")}
    for cpu, cuda in zip(ends["cpu"], ends["cuda"], strict=True):
        torch.testing.assert_close(cuda, cpu, rtol=tolerance, atol=tolerance)


def trained(name: str, device: str, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    starts = [torch.randn(shape, generator=generator) for shape in SHAPES]
    params = [start.to(device=device, dtype=dtype).requires_grad_() for start in starts]
    optimizer = make(name, params, 0.01)
    grads = [gradients(shape, 12, seed) for seed, shape in enumerate(SHAPES)]
    for step in range(12):
        for param, own in zip(params, grads, strict=True):
            param.grad = own[step].to(device=device, dtype=dtype)
        optimizer.step()
    return [param.detach().cpu() for param in params]


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_parameters_of_both_devices_in_one_group(name: str) -> None:
    grads = gradients((4, 3), 8)
    mixed = [torch.ones(4, 3, device=device, requires_grad=True) for device in ("cpu", "cuda", "cpu")]
    optimizer = make(name, mixed)
    for grad in grads:
        for param in mixed:
            param.grad = grad.to(param.device)
        optimizer.step()
    assert torch.equal(mixed[0], mixed[2])
    torch.testing.assert_close(mixed[1].cpu(), mixed[0], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_state_moves_to_the_device_of_its_parameter(name: str) -> None:
    grads = gradients((4, 3), 12)
    param = torch.ones(4, 3, requires_grad=True)
    optimizer = make(name, [param])
    run(optimizer, param, grads[:7])
    moved = param.detach().cuda().requires_grad_()
    resumed = make(name, [moved])
    resumed.load_state_dict(optimizer.state_dict())
    run(optimizer, param, grads[7:])
    run(resumed, moved, grads[7:])
    torch.testing.assert_close(moved.cpu(), param, rtol=2e-4, atol=2e-5)
    tensors: list[Any] = [value for value in resumed.state[moved].values() if isinstance(value, Tensor)]
    assert {tensor.device.type for tensor in tensors} == {"cuda"}


def test_a_sparse_gradient_is_refused_on_cuda_too() -> None:
    embedding = torch.nn.Embedding(10, 4, sparse=True).cuda()
    torch.autograd.backward(embedding(torch.tensor([1, 3]).cuda()).sum())
    with pytest.raises(ValueError, match="sparse gradient"):
        make("adamom", embedding.parameters()).step()


def test_inverse_roots_agree() -> None:
    factor = torch.randn(50, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mat = factor @ factor.T
    here, there = (apply_sparse_precond(each, *eigen_inverse_root(each, 4, 10, 10)) for each in (mat, mat.cuda()))
    torch.testing.assert_close(there.cpu(), here, rtol=1e-8, atol=1e-8)


def test_gram_agrees_beyond_one_strip() -> None:
    tensors = torch.randn(2, 600, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for axis in (0, 1):
        torch.testing.assert_close(grams(tensors.cuda(), axis).cpu(), grams(tensors, axis))


def test_norms_over_both_devices() -> None:
    mixed = [torch.tensor([3.0]), torch.tensor([4.0]).cuda(), torch.tensor([12.0], dtype=torch.bfloat16).cuda()]
    assert global_norm([*mixed]).item() == pytest.approx(13.0)
    result, _ = clip_by_global_norm([*mixed], 1.3)
    assert [tensor.device.type for tensor in result if tensor is not None] == ["cpu", "cuda", "cuda"]
    clip = joint_clip(mixed[1:], mixed[:1], clip_norm=1.3)
    clip.scale_dense_(mixed[1:])
    assert mixed[1].item() == pytest.approx(0.4, rel=1e-5)
    assert float(clip.row_factor) == pytest.approx(0.1)
