"""Pooling by the kernels of a device, on the processor, against the core: the same outputs and rows, bit for bit."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import monolith as ml
from monolith import _core
from monolith.errors import InvalidArgumentError
from monolith.nn import TableDefaults, use_table_defaults
from monolith.nn.embeddings import device_pooling, torch_pooling
from monolith.nn.embeddings.device_pooling import DeviceBatch
from monolith.tables import ALL_BUCKETS, BlockKind, CudaStore, KernelRows, LocalStore, TableConfig
from monolith.testing import ReferenceStore

IDS = 40


class OnProcessor(CudaStore):
    """As on a GPU: with threads in another order each time."""

    def __init__(self, configs: Mapping[str, TableConfig]) -> None:
        super().__init__(configs, device="cpu", launcher=_core.DeviceLauncher.on_cpu(shuffled=True))


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of the kernels; those of torch's operations fail."""
    made: list[str] = []
    for name in ("pool", "sum_gradients"):
        plain = getattr(DeviceBatch, name)

        def counted(batch: DeviceBatch, *args: Any, name: str = name, plain: Any = plain) -> Tensor:
            made.append(name)
            result: Tensor = plain(batch, *args)
            return result

        def fail(*_: object, name: str = name) -> None:
            raise AssertionError(name)

        monkeypatch.setattr(device_pooling.DeviceBatch, name, counted)
        monkeypatch.setattr(torch_pooling, name, fail)
    return made


class Twins:
    """Two modules that are given the same: rows in the core, and rows on a device, with kernels on the processor."""

    def __init__(self, slots: Mapping[str, ml.Slot], *, gpu: bool = False, **settings: Any) -> None:
        settings = {"optimizer": ml.row_optimizers.Adagrad(learning_rate=0.5), "seed": 3, **settings}
        self.host = ml.Embeddings(slots, store=LocalStore, **settings)
        on_device: dict[str, Any] = {"device": "cuda"} if gpu else {"store": OnProcessor}
        self.device = ml.Embeddings(slots, **on_device, **settings)
        self.both = (self.host, self.device)

    def forward(self, batch: Mapping[str, Any]) -> list[ml.nn.EmbeddingOutputs]:
        outputs = [emb(batch) for emb in self.both]
        assert bits(outputs[0].concat()) == bits(outputs[1].concat())
        return outputs

    def step(self, **settings: Any) -> None:
        first, second = (emb.step(**settings) for emb in self.both)
        assert first == second
        self.require_same_rows()

    def require_same_rows(self) -> None:
        assert content(self.host) == content(self.device)

    def train(self, batches: list[Mapping[str, Any]], *, by_slot: bool = False) -> None:
        for number, batch in enumerate(batches):
            for outputs in self.forward(batch):
                backward(outputs, number, by_slot=by_slot)
            self.step()


def content(emb: ml.Embeddings) -> dict[tuple[int, int, int], bytes]:
    """Weights and state of every row."""
    with emb.cut() as cut:
        return {
            (block.table, block.bucket, key): payload.tobytes()
            for block in cut.blocks(ALL_BUCKETS, state=True)
            if block.kind is BlockKind.FULL
            for key, payload in zip(block.keys.tolist(), block.payload, strict=True)
        }


def bits(values: Tensor) -> list[int]:
    found: list[int] = values.detach().cpu().contiguous().view(torch.int32).reshape(-1).tolist()
    return found


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def backward(outputs: ml.nn.EmbeddingOutputs, seed: int, *, by_slot: bool) -> None:
    draws = random(seed)
    if not by_slot:
        whole = outputs.concat()
        torch.autograd.backward((whole * torch.randn(whole.shape, generator=draws).to(whole.device)).sum())
        return
    parts = [
        (output * torch.randn(output.shape, generator=draws).to(output.device)).sum()
        for place, output in enumerate(outputs.values())
        if place % 3 != 1  # some slots have no gradient
    ]
    torch.autograd.backward(torch.stack(parts).sum())


def ragged(seed: int, num_examples: int, most: int = 5) -> ml.Ragged:
    draws = random(seed)
    lengths = torch.randint(0, most + 1, (num_examples,), generator=draws).tolist()
    return ml.Ragged.from_lists([torch.randint(0, IDS, (length,), generator=draws).tolist() for length in lengths])


ALL_COMBINERS = {
    "sum": ml.Slot(8),
    "mean": ml.Slot(8, combiner="mean"),
    "sqrtn": ml.Slot(8, combiner="sqrtn"),
    "first": ml.Slot(8, combiner=("first_n", 3)),
    "long": ml.Slot(8, combiner=("first_n", 9)),
    "one": ml.Slot(8, combiner="mean"),
    "two": ml.Slot(8, combiner="sqrtn"),
}
EVERY_DIM = {
    "a": ml.Slot(1, combiner="mean"),
    "b": ml.Slot(3),
    "c": ml.Slot(5, combiner=("first_n", 2)),
    "d": ml.Slot(1024, combiner="sqrtn"),
    "e": ml.Slot(shares="b"),
}


def batches_of(slots: Mapping[str, ml.Slot], num_examples: int = 33, count: int = 4) -> list[Mapping[str, Any]]:
    fixed = {"one": (num_examples,), "two": (num_examples, 2)}
    return [
        {
            name: torch.randint(0, IDS, fixed[name], generator=random(10 * step + place))
            if name in fixed
            else ragged(10 * step + place, num_examples)
            for place, name in enumerate(slots)
        }
        for step in range(count)
    ]


@pytest.mark.parametrize("by_slot", [False, True])
@pytest.mark.parametrize("slots", [ALL_COMBINERS, EVERY_DIM], ids=["every combiner", "every dim"])
def test_outputs_and_rows_have_the_bits_of_the_core(slots: dict[str, ml.Slot], by_slot: bool, calls: list[str]) -> None:
    Twins(slots).train(batches_of(slots), by_slot=by_slot)
    assert calls == ["pool", "sum_gradients"] * 4


def test_an_id_that_occurs_in_every_example() -> None:
    same = torch.full((65_536,), 7)
    slots = {"a": ml.Slot(4), "b": ml.Slot(3, combiner="mean"), "c": ml.Slot(4)}
    twins = Twins(slots)
    twins.train([{"a": same, "b": same, "c": torch.randint(0, 3, (65_536,), generator=random(1))}])
    assert twins.device.num_rows == 5


def test_batches_and_slots_without_ids(calls: list[str]) -> None:
    slots = {"a": ml.Slot(4), "b": ml.Slot(4, combiner=("first_n", 2)), "c": ml.Slot(3, combiner="mean")}
    none = ml.Ragged.from_lists([[], []])
    empty = torch.zeros(0, dtype=torch.int64)
    some = torch.tensor([1, 2])
    Twins(slots).train(
        [
            {"a": some, "b": none, "c": some},
            {"a": none, "b": none, "c": none},
            {"a": some, "b": torch.zeros(2, 0, dtype=torch.int64), "c": none},
            {"a": empty, "b": empty, "c": empty},
        ]
    )
    assert calls == ["pool", "sum_gradients"] * 4


def test_gradients_that_expand_and_gradients_of_both_kinds() -> None:
    twins = Twins(ALL_COMBINERS)
    for outputs in twins.forward(batches_of(ALL_COMBINERS)[0]):
        torch.autograd.backward(outputs.concat().sum())  # one float stands for all
    twins.step()
    for outputs in twins.forward(batches_of(ALL_COMBINERS)[1]):
        torch.autograd.backward((outputs.concat() * 0.7).sum() + (outputs["mean"] * 3).sum() + outputs["first"].sum())
    twins.step()
    for outputs in twins.forward(batches_of(ALL_COMBINERS)[2]):
        rows = outputs["sum"].t().contiguous()  # its gradient lies by columns
        torch.autograd.backward((rows * torch.randn(rows.shape, generator=random(5))).sum())
    twins.step()


def test_gradients_of_negative_zeros_add_up_to_zero() -> None:
    twins = Twins({"a": ml.Slot(4)}, optimizer=ml.row_optimizers.Momentum(learning_rate=0.5))
    for outputs in twins.forward({"a": torch.tensor([1, 1, 2])}):
        torch.autograd.backward(outputs["a"], torch.full((3, 4), -0.0))
    twins.step()


def test_accumulated_passes_make_one_step() -> None:
    twins = Twins(ALL_COMBINERS)
    for number, batch in enumerate(batches_of(ALL_COMBINERS)):
        for outputs in twins.forward(batch):
            backward(outputs, number, by_slot=number % 2 == 0)
    twins.step()


def test_two_backward_passes_of_one_graph_add_up() -> None:
    twins = Twins(ALL_COMBINERS)
    for outputs in twins.forward(batches_of(ALL_COMBINERS)[0]):
        loss = (outputs.concat() * torch.randn(outputs.concat().shape, generator=random(2))).sum()
        loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
        loss.backward()  # type: ignore[no-untyped-call]
    twins.step()


def test_clipped_steps_are_the_same() -> None:
    twins = Twins(EVERY_DIM)
    for number, batch in enumerate(batches_of(EVERY_DIM)):
        for outputs in twins.forward(batch):
            backward(outputs, number, by_slot=False)
        norms = [emb.grad_norm() for emb in twins.both]
        torch.testing.assert_close(norms[0], norms[1])
        twins.step(scale=min(1.0, 0.5 / float(norms[0])))


def test_discarded_gradients_leave_no_trace() -> None:
    twins = Twins(ALL_COMBINERS)
    first, second, *_ = batches_of(ALL_COMBINERS)
    for outputs in twins.forward(first):
        backward(outputs, 1, by_slot=False)
    assert [emb.discard() for emb in twins.both] == [1, 1]
    twins.train([second])
    assert twins.device.store.stats().open_plans == 0


def test_a_gradient_that_is_not_finite_is_refused_by_name() -> None:
    twins = Twins({"a": ml.Slot(4), "b": ml.Slot(4, combiner="mean")})
    batch = {"a": torch.tensor([5, 6]), "b": ml.Ragged.from_lists([[7, 8], []])}
    twins.train([batch])
    texts = []
    for emb, outputs in zip(twins.both, twins.forward(batch), strict=True):
        torch.autograd.backward(outputs["b"].sum() * float("inf"))
        with pytest.raises(InvalidArgumentError, match=r"slot 'b': the gradient of id 7 in example 0") as caught:
            emb.step()
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    twins.require_same_rows()
    twins.train([batch])


def test_evaluation_and_planned_batches_pool_by_kernels(calls: list[str]) -> None:
    twins = Twins(ALL_COMBINERS)
    batch, other, *_ = batches_of(ALL_COMBINERS)
    twins.train([batch])
    del calls[:]
    with torch.no_grad():
        twins.forward(other)
    planned = [emb.plan(batch) for emb in twins.both]
    assert planned[1].pooled._arrays is None  # nothing was brought back to the host
    first, second = (emb(plan) for emb, plan in zip(twins.both, planned, strict=True))
    assert bits(first.concat()) == bits(second.concat())
    assert calls == ["pool", "pool"]


def test_slots_of_more_launches_than_one() -> None:
    slots = {f"s{number}": ml.Slot(4, combiner="mean" if number % 2 else "sum") for number in range(130)}
    Twins(slots).train(batches_of(slots, num_examples=5, count=2), by_slot=True)


def test_copies_share_the_layout_and_have_kernels(calls: list[str]) -> None:
    twins = Twins(ALL_COMBINERS)
    batch, other, *_ = batches_of(ALL_COMBINERS)
    twins.train([batch])
    copied = Twins.__new__(Twins)
    copied.host, copied.device = (emb.clone_rows() for emb in twins.both)
    copied.both = (copied.host, copied.device)
    del calls[:]
    copied.train([other])
    assert calls == ["pool", "sum_gradients"]


NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@NEEDS_GPU
@pytest.mark.parametrize("by_slot", [False, True])
@pytest.mark.parametrize("slots", [ALL_COMBINERS, EVERY_DIM], ids=["every combiner", "every dim"])
def test_on_a_gpu_the_bits_are_the_same(slots: dict[str, ml.Slot], by_slot: bool, calls: list[str]) -> None:
    twins = Twins(slots, gpu=True)
    twins.train(batches_of(slots, num_examples=1000, count=3), by_slot=by_slot)
    assert calls == ["pool", "sum_gradients"] * 3
    assert twins.device(batches_of(slots)[0]).concat().is_cuda


@NEEDS_GPU
def test_an_id_that_occurs_in_every_example_on_a_gpu() -> None:
    same = torch.full((65_536,), 7)
    Twins({"a": ml.Slot(4), "b": ml.Slot(4, combiner="mean")}, gpu=True).train([{"a": same, "b": same}] * 2)


@contextmanager
def refused_waits() -> Iterator[None]:
    """torch raises where the host would wait for the GPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the mode is a prototype
        try:
            torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


@NEEDS_GPU
def test_the_host_waits_for_nothing_between_plan_and_step() -> None:
    twins = Twins(ALL_COMBINERS, gpu=True)
    first, second, *_ = batches_of(ALL_COMBINERS)
    twins.train([first])
    planned, stream = twins.device.plan(second), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with refused_waits(), torch.cuda.stream(stream):
        torch.autograd.backward(twins.device(planned).concat().square().sum())
    torch.cuda.current_stream().wait_stream(stream)
    torch.autograd.backward(twins.host(second).concat().square().sum())
    twins.step()


def test_only_stores_with_kernels_declare_them() -> None:
    configs = {"t": TableConfig([ml.Segment(2)])}
    assert isinstance(CudaStore(configs, device="cpu"), KernelRows)
    assert not isinstance(LocalStore(configs), KernelRows)
    assert not isinstance(ReferenceStore(configs), KernelRows)


def test_a_device_makes_the_store() -> None:
    emb = ml.Embeddings({"a": ml.Slot(2)}, device="cpu")
    assert isinstance(emb.store, LocalStore)
    assert emb({"a": torch.tensor([1])})["a"].device == torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_refused() -> None:
    with pytest.raises(ml.errors.UnavailableError, match="finds no GPU"):
        ml.Embeddings({"a": ml.Slot(2)}, device="cuda")


def test_a_device_together_with_a_store_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="leave one of them out"):
        ml.Embeddings({"a": ml.Slot(2)}, device="cuda", store=LocalStore)


@pytest.mark.parametrize("device", ["mps", torch.device("meta")])
def test_a_device_that_has_no_tables_is_refused(device: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="'cuda', 'cuda:N' or 'cpu'"):
        ml.Embeddings({"a": ml.Slot(2)}, device=device)


def test_the_store_of_a_runner_comes_before_the_device() -> None:
    with use_table_defaults(TableDefaults(store=ReferenceStore)):
        emb = ml.Embeddings({"a": ml.Slot(2)}, device="cpu")
    assert isinstance(emb.store, ReferenceStore)
