"""Several tasks in one model: mixtures of experts, routing, balanced losses, and the losses layers ask for."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from monolith.nn import (
    SNR,
    ExpertGate,
    GradNorm,
    HardConcrete,
    HasAuxiliaryLoss,
    MMoE,
    auxiliary_loss,
    fid_counter,
    iRazor,
)
from nn.layers.arrays import array, assert_close, mlp, random_tensor, randomized, sigmoid, softmax


def test_mmoe_mixes_experts_for_each_task() -> None:
    model = randomized(MMoE(4, [3, 2], num_tasks=2, num_experts=3, gate={"input_dim": 5}))
    x, g = random_tensor(6, 4, seed=1), random_tensor(6, 5, seed=2)
    gates = softmax((array(g) @ array(model.gate.weight)).reshape(6, 2, 3))
    experts = [mlp(expert, array(x)) for expert in model.experts]
    outputs = model(x, g)
    assert len(outputs) == 2
    for task, output in enumerate(outputs):
        expected = sum(gates[:, task, e : e + 1] * experts[e] for e in range(3))
        assert_close(output, np.asarray(expected))
    assert model.auxiliary_loss().item() == 0


def test_gates_start_equal_and_listen_to_all() -> None:
    x = random_tensor(3, 4).float()
    for gate_type in ("softmax", "topk"):
        gates = ExpertGate(4, 5, 2, gate_type=gate_type)(x)
        torch.testing.assert_close(gates, torch.full((3, 5, 2), 0.2))


def test_top_k_gates_keep_the_largest_and_add_up_to_one() -> None:
    gate = randomized(ExpertGate(4, 5, 2, gate_type="topk", top_k=2))
    x = random_tensor(7, 4)
    full = softmax((array(x) @ array(gate.weight)).reshape(7, 2, 5))
    expected = np.zeros_like(full)
    for row in range(7):
        for task in range(2):
            best = np.argsort(-full[row, task])[:2]
            expected[row, task, best] = full[row, task, best] / full[row, task, best].sum()
    assert_close(gate(x), expected.transpose(0, 2, 1))


def test_noise_is_for_training_only() -> None:
    torch.manual_seed(0)
    gate = randomized(ExpertGate(4, 5, 2, gate_type="noise_topk", top_k=2))
    x = random_tensor(7, 4)
    assert not torch.equal(gate(x), gate(x))
    gate.eval()
    assert torch.equal(gate(x), gate(x))
    plain = ExpertGate(4, 5, 2, gate_type="topk", top_k=2).double()
    plain.weight = gate.weight
    torch.testing.assert_close(gate(x), plain(x))


def test_noise_has_the_stated_spread() -> None:
    torch.manual_seed(0)
    gate = ExpertGate(1, 2, 1, gate_type="noise_topk", top_k=2).double()
    assert gate.noise is not None
    with torch.no_grad():
        gate.noise.fill_(1.5)
    gates = gate(torch.ones(200_000, 1, dtype=torch.float64))
    logit_difference = (gates[:, 0, 0] / gates[:, 1, 0]).log()  # of two independent noises
    expected = math.log1p(math.exp(1.5)) * math.sqrt(2)
    assert logit_difference.std().item() == pytest.approx(expected, rel=0.01)
    assert logit_difference.mean().item() == pytest.approx(0.0, abs=0.02)


def test_importance_loss_is_the_squared_variation_of_use() -> None:
    model = randomized(MMoE(4, [3], num_tasks=2, num_experts=3, gate={"gate_type": "topk", "top_k": 2}))
    x = random_tensor(6, 4)
    model(x)
    importance = array(model.gate(x)).sum(axis=0)
    expected = (importance.var(axis=0) / importance.mean(axis=0) ** 2).sum()
    assert model.auxiliary_loss().item() == pytest.approx(expected, rel=1e-12)
    torch.autograd.backward(model.auxiliary_loss())
    assert model.gate.weight.grad is not None
    assert model.gate.weight.grad.any()


def test_importance_loss_of_nothing_is_zero() -> None:
    model = MMoE(4, [3], num_tasks=2, num_experts=3, gate={"gate_type": "topk"})
    assert model.auxiliary_loss().item() == 0
    model(torch.zeros(0, 4))
    assert model.auxiliary_loss().item() == 0


def test_a_copy_of_a_model_has_seen_no_batch() -> None:
    model = randomized(MMoE(4, [3], num_tasks=2, num_experts=3, gate={"gate_type": "topk"}))
    model(random_tensor(6, 4))
    assert model.auxiliary_loss().item() > 0
    assert copy.deepcopy(model).auxiliary_loss().item() == 0
    assert model.auxiliary_loss().item() > 0


def test_experts_may_differ() -> None:
    model = MMoE(4, [[8, 2], [2]], num_tasks=3)
    assert [len(expert.blocks) for expert in model.experts] == [2, 1]  # type: ignore[arg-type]
    assert [list(each.shape) for each in model(torch.zeros(5, 4))] == [[5, 2]] * 3


@pytest.mark.parametrize(
    ("message", "dims", "options"),
    [
        ("num_experts is needed unless expert_dims has one list per expert", [3, 2], {}),
        ("expert_dims has 2 lists, so num_experts cannot be 3", [[3], [3]], {"num_experts": 3}),
        ("all experts must end in one size", [[3], [4]], {}),
        ("expert_dims must be sizes or lists of sizes", [3, [4]], {}),
        ("top_k must be at most the 2 experts, got 3", [[3], [3]], {"gate": {"gate_type": "topk", "top_k": 3}}),
        ("gate_type must be one of .* got 'top_k'; did you mean 'topk'", [[3]], {"gate": {"gate_type": "top_k"}}),
    ],
)
def test_wrong_mixtures_are_refused(message: str, dims: list[int], options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=message):
        MMoE(4, dims, num_tasks=2, **options)  # type: ignore[arg-type]


def gates_reference(log_alpha: float) -> float:
    return float(np.clip(sigmoid(np.array(log_alpha)) * 1.2 - 0.1, 0, 1))


def test_snr_routes_through_gates_and_weights() -> None:
    layer = randomized(SNR((3, 2), (2, 4))).eval()
    inputs = [random_tensor(5, 2, seed=seed) for seed in range(3)]
    z = np.array([gates_reference(each) for each in array(layer.gates.log_alpha)]).reshape(3, 2)
    assert layer.weight is not None
    for out, got in enumerate(layer(inputs)):
        expected = sum(z[i, out] * array(inputs[i]) @ array(layer.weight)[i, out] for i in range(3))
        assert_close(got, np.asarray(expected))


def test_snr_by_average_has_no_weights() -> None:
    layer = randomized(SNR((3, 2), (2, 2), kind="aver")).eval()
    inputs = [random_tensor(5, 2, seed=seed) for seed in range(3)]
    z = np.array([gates_reference(each) for each in array(layer.gates.log_alpha)]).reshape(3, 2)
    for out, got in enumerate(layer(inputs)):
        assert_close(got, np.asarray(sum(z[i, out] * array(inputs[i]) for i in range(3))))
    with pytest.raises(ValueError, match="kind 'aver' needs inputs and outputs of one size, got 2 and 3"):
        SNR((3, 2), (2, 3), kind="aver")
    with pytest.raises(ValueError, match="SNR: expected 3 inputs, got 2"):
        layer(inputs[:2])


def test_hard_concrete_gates_follow_their_distribution() -> None:
    torch.manual_seed(0)
    gates = HardConcrete(100_000).double()
    with torch.no_grad():
        gates.log_alpha.fill_(0.7)
    z = gates()
    assert z.min() == 0
    assert z.max() == 1
    u = np.random.default_rng(0).uniform(size=100_000)
    s = sigmoid((np.log(u) - np.log1p(-u) + 0.7) / 0.5) * 1.2 - 0.1
    expected = np.clip(s, 0, 1)
    assert z.mean().item() == pytest.approx(expected.mean(), abs=0.005)
    assert (z == 0).double().mean().item() == pytest.approx((expected == 0).mean(), abs=0.005)
    # The loss is the expected number of gates that are open.
    assert gates.l0_loss().item() / 100_000 == pytest.approx((expected > 0).mean(), abs=0.005)


def test_l0_loss_is_its_formula() -> None:
    layer = randomized(SNR((3, 2), (2, 4), gates={"beta": 0.4, "zeta": 1.2, "gamma": -0.3}))
    expected = sigmoid(array(layer.gates.log_alpha) - 0.4 * np.log(0.3 / 1.2)).sum()
    assert layer.auxiliary_loss().item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("is_straight_through", [False, True])
def test_straight_through_gradient_passes_the_clamp(is_straight_through: bool) -> None:
    gates = HardConcrete(2, is_straight_through=is_straight_through).double().eval()
    with torch.no_grad():
        gates.log_alpha.copy_(torch.tensor([-8.0, 0.0]))  # the first is clamped to 0
    z = gates()
    assert z.tolist() == pytest.approx([0.0, 0.5], abs=1e-15)
    z.sum().backward()
    s = sigmoid(np.array([-8.0, 0.0]))
    slope = s * (1 - s) * 1.2
    assert gates.log_alpha.grad is not None
    assert gates.log_alpha.grad.tolist() == pytest.approx([slope[0] if is_straight_through else 0.0, slope[1]])


def test_hard_concrete_refuses_ends_that_cannot_be_reached() -> None:
    with pytest.raises(ValueError, match=r"needs beta > 0, zeta > 1 and gamma < 0, got 0\.5, 1\.0 and -0\.1"):
        HardConcrete(2, zeta=1.0)


@pytest.mark.parametrize(("is_relative", "power"), [(False, 2.0), (True, 1.0)])
def test_grad_norm_is_its_formula(is_relative: bool, power: float) -> None:
    layer = GradNorm(["ctr", "cvr"], scale=3.0, power=power, is_relative=is_relative).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([0.3, -0.2], dtype=torch.float64))
    shared = random_tensor(4, 3).requires_grad_()
    losses = [(shared**2).sum(), (5 * shared).sum()]
    norm_loss, weighted_loss = layer(losses, shared)
    w = softmax(np.array([0.3, -0.2]))
    g = np.array([np.linalg.norm(2 * array(shared)), np.linalg.norm(np.full((4, 3), 5.0))])
    difference = np.abs(w * g - (w * g).mean())
    if is_relative:
        difference = difference / ((w * g).mean() + 1e-6)
    assert norm_loss.item() == pytest.approx(3.0 * (difference**power).sum(), rel=1e-10)
    assert weighted_loss.item() == pytest.approx(w @ np.array([loss.item() for loss in losses]), rel=1e-12)
    assert list(layer.loss_weights()) == ["ctr", "cvr"]


def test_grad_norm_trains_the_weights_and_the_model_apart() -> None:
    layer = GradNorm(["ctr", "cvr"])
    shared = torch.randn(4, 3, requires_grad=True)
    norm_loss, weighted_loss = layer([(shared**2).sum(), (5 * shared).sum()], [shared])
    norm_loss.backward(retain_graph=True)
    assert layer.weight.grad is not None
    assert layer.weight.grad.any()
    assert shared.grad is None
    layer.weight.grad = None
    weighted_loss.backward()
    assert layer.weight.grad is None
    assert shared.grad is not None


def test_grad_norm_evens_out_the_pull_of_two_losses() -> None:
    torch.manual_seed(0)
    layer = GradNorm(["weak", "strong"], is_relative=True)
    shared = torch.randn(8, requires_grad=True)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(300):
        optimizer.zero_grad()
        layer([shared.sum(), 9.0 * shared.sum()], shared).norm_loss.backward()
        optimizer.step()
    weights = layer.loss_weights()
    assert weights["weak"] / weights["strong"] == pytest.approx(9.0, rel=0.05)


def test_grad_norm_in_evaluation_and_with_a_loss_that_shares_nothing() -> None:
    layer = GradNorm(["a", "b"])
    with torch.no_grad():
        norm_loss, weighted_loss = layer([torch.tensor(1.0), torch.tensor(3.0)], torch.zeros(2))
    assert norm_loss.item() == 0
    assert weighted_loss.item() == 2
    shared, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    assert layer([shared.sum(), other.sum()], shared).norm_loss.item() == pytest.approx(2 * (math.sqrt(2) / 4) ** 2)


@pytest.mark.parametrize("names", [[], ["a", "a"]])
def test_grad_norm_needs_distinct_names(names: list[str]) -> None:
    with pytest.raises(ValueError, match="loss_names must be distinct and at least one"):
        GradNorm(names)


def test_grad_norm_refuses_losses_that_do_not_fit() -> None:
    layer = GradNorm(["a", "b"])
    with pytest.raises(ValueError, match="expected 2 losses, got 1"):
        layer([torch.tensor(1.0)], torch.zeros(2))
    with pytest.raises(ValueError, match=r"a loss must be a scalar, got shape \[3\]"):
        layer([torch.zeros(3), torch.tensor(1.0)], torch.zeros(2))


def test_auxiliary_losses_of_a_model_add_up() -> None:
    snr, razor = SNR((2, 3), (2, 3)), iRazor(2, [0, 1, 3], feature_weight=[1.0, 2.0])
    model = nn.ModuleDict({"snr": snr, "razor": razor, "plain": nn.Linear(2, 2)})
    expected = snr.auxiliary_loss() + razor.auxiliary_loss()
    torch.testing.assert_close(auxiliary_loss(model), expected)
    assert auxiliary_loss(nn.Linear(2, 2)).item() == 0
    assert isinstance(snr, HasAuxiliaryLoss)


def test_fid_counter_counts_under_sgd_of_rate_one() -> None:
    counter = torch.zeros(2, 1, requires_grad=True)
    seen = []
    for step in range(5):
        count = fid_counter(counter, 3.0)
        seen.append(count.flatten().tolist())
        torch.autograd.backward((0.0 * count[: 1 + step % 2]).sum())  # row 1 takes part in every second step only
        assert counter.grad is not None
        with torch.no_grad():
            used = torch.tensor([[1.0], [float(step % 2)]])
            counter -= counter.grad * used
        counter.grad = None
    assert seen == [[1.0, 1.0], [2.0, 1.0], [3.0, 2.0], [3.0, 2.0], [3.0, 3.0]]
    assert counter.flatten().tolist() == [3.0, 2.0]


def test_fid_counter_has_a_constant_gradient() -> None:
    counter = torch.tensor([0.0, 1.5, 2.0, 3.0], requires_grad=True)
    count = fid_counter(counter, 2.0, 0.5)
    assert count.tolist() == [0.5, 2.0, 2.0, 2.0]
    torch.autograd.backward((100.0 * count).sum())
    assert counter.grad is not None
    assert counter.grad.tolist() == [-0.5, -0.5, 0.0, 0.0]
    with pytest.raises(ValueError, match="threshold and step must be > 0"):
        fid_counter(counter, 0.0)
