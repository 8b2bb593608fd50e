"""Restoring into runs that are not quite the one that was saved."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import monolith as ml
from checkpoint.runs import Run, contents
from monolith.checkpoint import (
    RestoreConfig,
    Saver,
    TrainState,
    calc_feed_dict,
    generate_alias_map,
)
from monolith.checkpoint.inspection import reshard
from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from monolith.tables import BatchStamp

pytestmark = pytest.mark.usefixtures("on_every_store")


def saved(tmp_path: Path, state: TrainState) -> Path:
    with Saver(tmp_path) as saver:
        saver.save(state)
    return tmp_path


class Named(nn.Module):
    """Weights under names of one's choice."""

    v: Tensor
    v0: Tensor
    v1: Tensor
    w0: Tensor

    def __init__(self, **weights: Tensor) -> None:
        super().__init__()
        for name, value in weights.items():
            if value.is_floating_point():
                setattr(self, name, nn.Parameter(value.clone()))
            else:
                self.register_buffer(name, value.clone())


def weights(model: nn.Module) -> dict[str, list[float]]:
    return {name: value.flatten().tolist() for name, value in model.state_dict().items()}


def test_values_of_all_types_and_int64_extremes(tmp_path: Path) -> None:
    kinds = {
        "f": torch.tensor([1.5, -0.0]),
        "d": torch.tensor([1e300], dtype=torch.float64),
        "h": torch.tensor([0.5], dtype=torch.float16),
        "b": torch.tensor([3.0], dtype=torch.bfloat16),
        "i": torch.tensor([2**63 - 1, -(2**63)]),
        "t": torch.tensor([True, False]),
    }
    saved(tmp_path, TrainState(model=Named(**kinds)))
    again = Named(**{name: torch.zeros_like(value) for name, value in kinds.items()})
    Saver(tmp_path).restore(TrainState(model=again))
    for name, value in kinds.items():
        restored = again.state_dict()[name]
        assert restored.dtype == value.dtype
        assert torch.equal(restored, value)


def test_a_state_without_model_or_anything(tmp_path: Path) -> None:
    state = TrainState(global_step=4)
    state.positions["other"] = b"there"
    state.applied[2] = BatchStamp(worker=2, seq=7, position=b"here")
    saved(tmp_path, state)
    again = TrainState()
    Saver(tmp_path).restore(again)
    assert (again.global_step, again.positions, again.position(2)) == (4, {"other": b"there"}, b"here")
    assert again.applied == state.applied


def test_a_path_can_be_named_in_many_ways_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, TrainState(global_step=4))
    for path in ("model.ckpt-4", f"{tmp_path}/model.ckpt-4", f"{tmp_path}/model.ckpt-4.manifest"):
        restored = Saver(tmp_path).restore(TrainState(), path)
        assert restored is not None
        assert restored.path == f"{tmp_path}/model.ckpt-4"
    for path in ("model.ckpt-5", "/nowhere/model.ckpt-4", ""):
        with pytest.raises(InvalidArgumentError, match=r"The passed save_path is not a valid checkpoint: "):
            Saver(tmp_path).restore(TrainState(), path)


def test_padded_step_numbers(tmp_path: Path) -> None:
    with Saver(tmp_path, pad_step_number=True) as saver:
        saver.save(TrainState(global_step=42))
    assert (tmp_path / "model.ckpt-00000042.manifest").exists()
    state = TrainState()
    Saver(tmp_path).restore(state)
    assert state.global_step == 42


def test_a_saver_that_skips_leaves_no_trace(tmp_path: Path) -> None:
    with Saver(tmp_path / "model", skip_save=True) as saver:
        assert saver.save(TrainState(global_step=1), background=False).step == 1
        assert saver.save(TrainState(global_step=2), background=True).wait(60).step == 2
        saver.create_state_file()
    assert not (tmp_path / "model").exists()


def test_a_saver_may_be_made_before_the_weights(tmp_path: Path) -> None:
    with Saver(tmp_path) as saver:
        model = nn.LazyLinear(2)
        model(torch.ones(1, 3))
        saver.save(TrainState(model=model))
    again = nn.Linear(3, 2)
    Saver(tmp_path).restore(TrainState(model=again))
    assert torch.equal(again.weight, model.weight)


def test_tied_weights_are_written_once(tmp_path: Path) -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    saved(tmp_path, TrainState(model=model))
    again = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    again["b"].weight = again["a"].weight
    Saver(tmp_path).restore(TrainState(model=again))
    assert weights(again) == weights(model)


def test_optimizer_state_follows_its_parameters_into_another_order(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    adam.step()
    saved(tmp_path, TrainState(model=model, optimizers={"a": adam}))
    again = copy.deepcopy(model)
    other = torch.optim.Adam(list(again.parameters())[::-1], lr=0.7)
    Saver(tmp_path).restore(TrainState(model=again, optimizers={"a": other}))
    assert other.param_groups[0]["lr"] == 0.1
    for mine, theirs in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(adam.state[mine]["exp_avg"], other.state[theirs]["exp_avg"])


def test_options_that_are_functions_are_kept_not_saved(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    group = {"params": list(model.parameters()), "when": lambda: 3}
    state = TrainState(model=model, optimizers={"a": torch.optim.SGD([group], lr=0.5)})
    saved(tmp_path, state)
    group = {"params": list(model.parameters()), "when": lambda: 4}
    again = torch.optim.SGD([group], lr=0.1)
    Saver(tmp_path).restore(TrainState(model=model, optimizers={"a": again}))
    assert (again.param_groups[0]["lr"], again.param_groups[0]["when"]()) == (0.5, 4)


def test_other_parts_are_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    run = Run()
    run.steps(2)
    saved(tmp_path, run.state)
    other = Run(seed=4)
    other.model.tower[3] = nn.Linear(6, 2)
    held = contents(other)
    with pytest.raises(FailedPreconditionError, match=r"'tower.3.weight' was saved with shape \(1, 6\), now \(2, 6\)"):
        Saver(tmp_path).restore(other.state)
    assert contents(other) == held
    other = Run(seed=4)
    other.model.add_module("more", nn.Linear(1, 1))
    with pytest.raises(FailedPreconditionError, match=r"'more.bias' is new, shape .*'more.weight' is new"):
        Saver(tmp_path).restore(other.state)
    other = Run(seed=4)
    with pytest.raises(FailedPreconditionError, match=r"has optimizers \['adam'\], not \['sgd'\]"):
        Saver(tmp_path).restore(TrainState(model=other.model, optimizers={"sgd": other.adam}))
    two = torch.optim.Adam([{"params": [each]} for each in other.model.tower.parameters()])
    with pytest.raises(FailedPreconditionError, match=r"Adam: 4 parameter groups, the checkpoint has 1"):
        Saver(tmp_path).restore(TrainState(model=other.model, optimizers={"adam": two}))


def test_several_stores_and_a_renamed_one(tmp_path: Path) -> None:
    def make() -> Any:
        return nn.ModuleDict({"a": ml.Embeddings({"user": ml.Slot(2)}), "b": ml.Embeddings({"user": ml.Slot(3)})})

    model = make()
    for emb in model.values():
        emb({"user": torch.tensor([1, 2])})["user"].sum().backward()
        emb.step()
    model["b"]({"user": torch.tensor([9])})["user"].sum().backward()
    model["b"].step()
    saved(tmp_path, TrainState(model=model))
    again = make()
    Saver(tmp_path).restore(TrainState(model=again))
    assert [emb.num_rows for emb in again.values()] == [2, 3]
    ids = torch.tensor([1, 2, 9])
    assert torch.equal(again["b"].lookup("user", ids), model["b"].lookup("user", ids))

    for path in (tmp_path / "model.ckpt-0.assets" / "b").glob("*.rows"):
        path.write_bytes(b"")
    third = make()
    with pytest.raises(ml.errors.DataLossError):
        Saver(tmp_path).restore(TrainState(model=third))
    assert [emb.num_rows for emb in third.values()] == [0, 0]
    with pytest.raises(FailedPreconditionError, match=r"tables of \['a', 'b'\], the model those of \['c'\]"):
        Saver(tmp_path).restore(
            TrainState(model=nn.ModuleDict({"c": ml.Embeddings({"user": ml.Slot(2)})})),
            options=RestoreConfig(alias_map={"c._extra_state": "a._extra_state"}),
        )


def test_shared_stores_are_saved_once(tmp_path: Path) -> None:
    emb = ml.Embeddings({"user": ml.Slot(2)})
    emb.deep_copies = "share"
    state = TrainState(model=nn.ModuleDict({"a": emb, "b": copy.deepcopy(emb)}))
    assert list(state.stores) == ["a"]
    saved(tmp_path, state)
    assert [path.name for path in (tmp_path / "model.ckpt-0.assets").iterdir()] == ["a"]


# Renamed weights


def test_an_alias_map_renames_weights_and_their_optimizer_state(tmp_path: Path) -> None:
    old = Named(v0=torch.tensor([10.0, 1.0]), v1=torch.tensor([20.0]))
    adam = torch.optim.Adam(old.parameters())
    (old.v0.sum() + old.v1.sum()).backward()  # type: ignore[no-untyped-call]
    adam.step()
    saved(tmp_path, TrainState(model=old, optimizers={"adam": adam}))
    new = Named(w0=torch.zeros(2), v1=torch.zeros(1))
    other = torch.optim.Adam(new.parameters())
    state = TrainState(model=new, optimizers={"adam": other})
    with pytest.raises(FailedPreconditionError, match=r"'w0' is "):
        Saver(tmp_path).restore(state)
    Saver(tmp_path, restoring=RestoreConfig(alias_map={"w0": "v0"})).restore(state)
    assert torch.equal(new.w0, old.v0)
    assert torch.equal(new.v1, old.v1)
    assert torch.equal(other.state[new.w0]["exp_avg"], adam.state[old.v0]["exp_avg"])
    with pytest.raises(NotFoundError, match=r"alias 'w0': the checkpoint has no 'x'; it has \['v0', 'v1'\]"):
        Saver(tmp_path).restore(state, options=RestoreConfig(alias_map={"w0": "x"}))


def test_feeds_are_none_if_nothing_is_renamed_and_split_if_parts_share_a_name() -> None:
    old = {"a/w": torch.arange(10.0).reshape(5, 2), "b": torch.ones(1)}
    assert calc_feed_dict(old, {"a/w/part_0": "a/w", "b": "b"}, {}) is None
    parts = {"n/w/part_10": "a/w", "n/w/part_2": "a/w", "b": "b"}
    shapes = {"n/w/part_2": (2, 2), "n/w/part_10": (3, 2), "b": (1,)}
    feeds = calc_feed_dict(old, parts, shapes)
    assert feeds is not None
    assert feeds["n/w/part_2"].tolist() == [[0, 1], [2, 3]]
    assert feeds["n/w/part_10"].tolist() == [[4, 5], [6, 7], [8, 9]]
    with pytest.raises(
        FailedPreconditionError, match=r"have \[2, 2\] rows, 4 in all, but 'a/w' of the checkpoint has 5"
    ):
        calc_feed_dict(old, parts, {**shapes, "n/w/part_10": (2, 2)})


@pytest.mark.parametrize(
    ("wanted", "old"),
    [
        ("tower/dense/bias", "tower/tower/dense/bias"),
        ("net/dense_3/kernel", "net/dense/kernel"),
        ("net/dense_4/bias", "net/dense_1/bias"),
        ("net/dense_4/trainable_kernel_norm", "net/dense_1/trainable_kernel_norm"),
        ("x/c_dot/compress_tower/w", "x/c_dot/mlp/w"),
        ("x/kernel_2", "x/dcn/kernel_2"),
        ("mine", "yours"),
        ("same", "same"),
    ],
)
def test_old_names_are_found_by_rule(wanted: str, old: str) -> None:
    saved_names = [
        "tower/tower/dense/bias", "net/dense/bias", "net/dense/kernel", "net/dense_1/bias", "net/dense_1/kernel",
        "net/dense_1/trainable_kernel_norm", "x/c_dot/mlp/w", "x/dcn/kernel_2", "yours", "same",
    ]  # fmt: skip
    names = ["net/dense_3/bias", "net/dense_4/bias", wanted]
    found = generate_alias_map(names, saved_names, [("^mine$", "yours")])
    assert found is not None
    assert found[wanted] == old


def test_a_name_without_old_one_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert generate_alias_map(["a", "b"], ["a"]) is None
    assert "no weight for 'b'" in caplog.text


def test_dense_layers_are_renumbered_at_restore(tmp_path: Path) -> None:
    """Another layer stands before them now, so that their numbers have moved."""

    def tower(first: int) -> nn.Module:
        return nn.ModuleDict({"tower": nn.ModuleDict({f"dense_{first + n}": nn.Linear(2, 2) for n in range(2)})})

    old, new = tower(1), tower(4)
    saved(tmp_path, TrainState(model=old))
    Saver(tmp_path).restore(TrainState(model=new))
    assert list(weights(new).values()) == list(weights(old).values())
    third = tower(4)
    with pytest.raises(FailedPreconditionError, match="weights that were renamed are found by alias_map"):
        Saver(tmp_path, restoring=RestoreConfig(auto_alias=False)).restore(TrainState(model=third))


def test_weights_of_another_shape(tmp_path: Path) -> None:
    old = Named(v=torch.arange(6.0).reshape(2, 3))
    adam = torch.optim.Adam(old.parameters())
    old.v.sum().backward()  # type: ignore[no-untyped-call]
    adam.step()
    saved(tmp_path, TrainState(model=old, optimizers={"adam": adam}))
    new = Named(v=torch.zeros(3, 2))
    other = torch.optim.Adam(new.parameters())
    state = TrainState(model=new, optimizers={"adam": other})
    with pytest.raises(FailedPreconditionError, match="only the shape differs by reshape=True"):
        Saver(tmp_path).restore(state)
    Saver(tmp_path, restoring=RestoreConfig(reshape=True)).restore(state)
    assert torch.equal(new.v, old.v.reshape(3, 2))
    assert other.state[new.v]["exp_avg"].shape == (3, 2)
    with pytest.raises(FailedPreconditionError, match=r"now \(5,\)"):
        Saver(tmp_path).restore(TrainState(model=Named(v=torch.zeros(5))), options=RestoreConfig(reshape=True))


# A dense part that starts anew


@pytest.mark.parametrize("continues", [False, True])
def test_the_dense_part_restarts_from_scratch_once(tmp_path: Path, *, continues: bool) -> None:
    run = Run()
    run.steps(5)
    saved(tmp_path, run.state)
    rows = contents(run)["rows"]
    options = RestoreConfig(clear_nn=True, continue_training=continues)
    fresh = Run(seed=7)
    before = contents(fresh)
    with Saver(tmp_path, restoring=options) as saver:
        saver.restore(fresh.state)
        after = contents(fresh)
        assert after["rows"] == rows
        assert after["weights"] == before["weights"]
        assert after["adam"] == {}
        assert after["step"] == (5 if continues else 0)
        assert fresh.state.position() == b"5"
        assert (tmp_path / "clear_nn").read_text() == "clear_nn"
        fresh.steps(2)
        saver.save(fresh.state)
    again = Run(seed=8)
    Saver(tmp_path, restoring=options).restore(again.state)
    assert contents(again) == contents(fresh)


def test_a_run_that_goes_back_to_a_checkpoint_trains_as_a_new_one_does(tmp_path: Path) -> None:
    run, new = Run(), Run(seed=7)
    run.steps(3)
    saved(tmp_path, run.state)
    run.steps(2)
    for each in (run, new):
        Saver(tmp_path).restore(each.state)
        each.steps(2)
    assert contents(run) == contents(new)


def test_contradictory_options_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="clear_nn resets all dense weights"):
        RestoreConfig(clear_nn=True, alias_map={"a": "b"})
    with pytest.raises(InvalidArgumentError, match="it needs clear_nn"):
        RestoreConfig(continue_training=True)


# Without tables


def test_a_dense_only_checkpoint_leaves_the_tables_as_they_are(tmp_path: Path) -> None:
    run = Run()
    run.steps(3)
    with Saver(tmp_path / "dense_only", dense_only=True) as saver:
        saver.save(run.state)
    dense = contents(run)["weights"]
    assert not list((tmp_path / "dense_only").glob("*.assets"))
    run.steps(2)
    rows = contents(run)["rows"]
    Saver(tmp_path / "dense_only").restore(run.state)
    assert contents(run)["weights"] == dense
    assert contents(run)["rows"] == rows
    assert run.state.global_step == 3


def test_a_dense_only_checkpoint_is_copied_to_a_folder_that_is_made_for_it(tmp_path: Path) -> None:
    run = Run()
    run.steps(3)
    with Saver(tmp_path / "dense_only", dense_only=True) as saver:
        path = saver.save(run.state, background=False).path
    dense = contents(run)["weights"]
    reshard(path, tmp_path / "new" / "copy", num_files=2)
    run.steps(1)
    Saver(tmp_path / "new" / "copy").restore(run.state)
    assert contents(run)["weights"] == dense
