"""Runs that are killed with SIGKILL, many of them inside a save, lose nothing. ``scripts/crash-test`` kills more."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from monolith.checkpoint import Saver, TrainState
from monolith.train import Trainer
from programs import Programs
from system.crash import SCENARIOS, fingerprint
from system.crash.tasks import CountingTask, EverythingTask

QUICK = "steps, background, read ahead"
"""The scenario of the quick tier."""


@pytest.mark.parametrize(
    ("scenario", "kills"),
    [
        pytest.param(each.name, 3 + (number == 0), marks=[] if each.name == QUICK else pytest.mark.slow)
        for number, each in enumerate(SCENARIOS)
    ],
)
def test_a_killed_run_ends_like_one_that_was_not(
    scenario: str, kills: int, project_root: Path, quick_folder: Path, programs: Programs
) -> None:
    arguments = ["--scenario", scenario, "--kills", str(kills), "--seed", "7", "--json"]
    arguments += ["--directory", str(quick_folder)]
    done = programs.run(Path("scripts/crash-test"), *arguments, folder=project_root)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["scenarios"]
    assert row["kills"] == kills
    assert row["problems"] == []
    assert row["good"] == row["runs"] >= 1
    assert list(quick_folder.iterdir()) == [], "nothing is left behind"


@pytest.mark.slow
@pytest.mark.parametrize(
    "store",
    [
        "reference",
        "cuda-on-cpu",
        *(f"tests/contracts/{each}" for each in ("pipe_store.py:PipeStore", "device_store.py:DeviceStore")),
    ],
)
def test_a_killed_run_ends_like_an_uninterrupted_one_for_every_store(
    store: str, project_root: Path, quick_folder: Path, programs: Programs
) -> None:
    arguments = ["--scenario", "steps", "--kills", "1", "--seed", "7", "--json"]
    arguments += ["--directory", str(quick_folder), "--store", store]
    done = programs.run(Path("scripts/crash-test"), *arguments, folder=project_root)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["scenarios"]
    assert (row["kills"], row["problems"]) == (1, [])
    assert row["good"] == row["runs"] >= 1


def trained(task_class: type[Any], steps: int) -> tuple[Any, TrainState]:
    params = task_class.params()
    params.num_steps = steps
    task = task_class(params)
    return task, Trainer(task).train()


def test_the_fingerprint_sees_every_part_of_a_state() -> None:
    task, state = trained(EverythingTask, 3)
    before = fingerprint(state)
    assert fingerprint(state) == before, "looking changes nothing"
    with torch.no_grad():
        task.deep[0].bias[0] += 1e-6
    state.applied[0] = replace(state.applied[0], position=b"elsewhere")
    state.optimizers["dense"].param_groups[0]["lr"] *= 1.000001
    torch.rand(1)
    after = fingerprint(state)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"dense", "positions", "optimizers", "random"}
    batch = task.input_fn("train").batch_at(0, 1)
    task.emb({name: batch[name] for name in task.emb.slots})["item"].sum().backward()
    task.emb.step()
    assert fingerprint(state)["rows of emb"] != before["rows of emb"]


def test_the_fingerprint_of_a_restored_state_is_that_of_the_saved_one(tmp_path: Path) -> None:
    _, state = trained(EverythingTask, 5)
    with Saver(tmp_path) as saver:
        saver.save(state, background=False)
        _, other = trained(EverythingTask, 2)
        assert fingerprint(other) != fingerprint(state)
        saver.restore(other)
    # The generators are the process's: both states share them.
    assert fingerprint(other) == fingerprint(state)


def test_the_count_finds_a_batch_that_was_lost_or_applied_twice() -> None:
    task, _ = trained(CountingTask, 4)
    assert task.miscounts() == []
    task.p.num_steps = 5
    assert any("in the data" in line for line in task.miscounts()), "a batch was lost"
    task.p.num_steps = 3
    assert any(line.startswith("tags ") for line in task.miscounts()), "a batch was applied that is not in the data"
