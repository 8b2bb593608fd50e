"""Rows on another device, from training to serving: the results are those of rows in this process, and few copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import monolith as ml
from contracts.device_store import DeviceStore
from contracts.device_tensor import COPIES, NAME
from monolith.nn.combiners import FirstN
from monolith.nn.table_defaults import TableDefaults, use_table_defaults
from monolith.online import DeltaPublisher, Follower
from monolith.serving import Predictor
from monolith.tables import ALL_BUCKETS, BatchStamp, LocalStore, serving_tables
from monolith.testing import ExampleTask
from monolith.train import Trainer, TrainerConfig

Engine = Any


def embeddings(engine: Engine) -> ml.Embeddings:
    start = ml.initializers.Constant(0.5)
    return ml.Embeddings(
        {
            "user": ml.Slot(2, initializer=start),
            "tags": ml.Slot(3, combiner="mean", initializer=start),
            "item": ml.Slot(2, initializer=start, combiner="sqrtn"),
            "history": ml.Slot(shares="item", combiner=FirstN(2)),
        },
        ml.row_optimizers.DelayCompensated(ml.row_optimizers.Adagrad(learning_rate=0.5)),
        store=engine,
    )


def batch_of(seed: int) -> dict[str, ml.Ragged]:
    random = torch.Generator().manual_seed(seed)

    def lists() -> list[list[int]]:
        lengths = torch.randint(0, 4, (5,), generator=random).tolist()
        return [torch.randint(0, 6, (length,), generator=random).tolist() for length in lengths]

    return {name: ml.Ragged.from_lists(lists()) for name in ("user", "tags", "item", "history")}


def train(model: ml.Embeddings, seed: int, **how: Any) -> dict[str, torch.Tensor]:
    outputs = model(batch_of(seed))
    sum(output.square().sum() + output.sum() for output in outputs.values()).backward()
    model.step(**how)
    return {name: output.detach() for name, output in outputs.items()}


def test_a_model_is_trained_as_with_rows_in_this_process() -> None:
    here, there = embeddings(LocalStore), embeddings(DeviceStore)
    for seed in range(6):
        expected, got = train(here, seed, scale=0.5), train(there, seed, scale=0.5)
        for name, output in expected.items():
            torch.testing.assert_close(got[name], output)
    for name in ("user", "tags", "item"):
        ids = torch.arange(6)
        torch.testing.assert_close(there.lookup(name, ids).cpu(), here.lookup(name, ids))


def test_pooled_outputs_and_no_rows_are_copied_to_the_host() -> None:
    model = embeddings(DeviceStore)
    train(model, 0)
    COPIES.clear()
    outputs = model(batch_of(1))
    assert COPIES["to host"] == 1
    sum(output.sum() for output in outputs.values()).backward()
    assert COPIES["to host"] == 1
    model.step()
    assert COPIES["to host"] == 1


def test_gradients_of_several_passes_are_added_and_clipped_on_the_device() -> None:
    here, there = embeddings(LocalStore), embeddings(DeviceStore)
    for model in (here, there):
        for seed in (1, 2):
            sum(output.square().sum() for output in model(batch_of(seed)).values()).backward()
    torch.testing.assert_close(there.grad_norm().cpu(), here.grad_norm())
    for model in (here, there):
        model.step(scale=torch.tensor(0.25))
    ids = torch.arange(6)
    torch.testing.assert_close(there.lookup("user", ids).cpu(), here.lookup("user", ids))


ENGINES: dict[str, Engine] = {"here": LocalStore, NAME: DeviceStore}


def run_of(name: str, folder: Path, *, steps: int) -> Trainer:
    """A run that begins or resumes in its folder, with rows here or there."""
    torch.manual_seed(0)
    with use_table_defaults(TableDefaults(store=ENGINES[name])):
        trainer = Trainer(ExampleTask(), TrainerConfig(model_dir=str(folder / name)))
        state = trainer.train(steps=steps)
    assert all(isinstance(store, ENGINES[name]) for store in state.stores.values())
    return trainer


def test_a_run_is_saved_and_resumed(tmp_path: Path) -> None:
    batch = ExampleTask().input_fn("train").make(9)
    predictions = {}
    for name in ENGINES:
        first = run_of(name, tmp_path, steps=3)
        resumed = run_of(name, tmp_path, steps=2)
        assert first.state is not None
        assert resumed.state is not None
        assert resumed.state.global_step == first.state.global_step + 2
        predictions[name] = resumed.predict(batch)
    torch.testing.assert_close(predictions[NAME], predictions["here"])


def test_an_export_is_served_and_follows_the_log(tmp_path: Path) -> None:
    batch = ExampleTask().input_fn("train").make(9)
    run = run_of(NAME, tmp_path, steps=3)
    assert run.state is not None
    export, log = str(tmp_path / "export"), str(tmp_path / "log")
    run.export(export, example=batch)
    publisher = DeltaPublisher(run.state.stores, log)
    publisher.publish()
    with Predictor(export) as here, Predictor(export, engine=DeviceStore, follow=log) as there:
        there.wait_ready()
        expected = here.predict(batch).outputs["predictions"]
        COPIES.clear()
        answer = there.predict(batch)
        assert COPIES["to host"] == 1
        assert answer.num_found == here.predict(batch).num_found > 0
        torch.testing.assert_close(answer.outputs["predictions"], expected)
        publisher.close()


def test_a_follower_brings_the_changes_of_a_device_to_another(tmp_path: Path) -> None:
    state = run_of(NAME, tmp_path, steps=3).state
    assert state is not None
    name, store = next(iter(state.stores.items()))
    publisher = DeltaPublisher({name: store}, str(tmp_path / "log"))
    publisher.publish()
    publisher.close()
    copy = DeviceStore(serving_tables(store.schema))
    with Follower({name: copy}, str(tmp_path / "log")) as follower:
        follower.catch_up()
    assert copy.stats().rows == store.stats().rows > 0
    with store.cut() as cut:
        keys = torch.cat([torch.from_numpy(block.keys.copy()) for block in cut.blocks(ALL_BUCKETS, state=True)])
    splits = torch.tensor([0] + [len(keys)] * len(store.schema.tables))
    rows = [
        each.read(each.plan(keys, splits, stamp=BatchStamp(worker=0, seq=0)), step=0).result().values.cpu()
        for each in (copy, store)
    ]
    torch.testing.assert_close(*rows, rtol=1e-2, atol=1e-3)  # serving rows are compressed
