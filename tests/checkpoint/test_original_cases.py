"""save_utils_test of the original, case by case: the test that shows it here, or why nothing corresponds to it."""

# ruff: noqa: E501 - the table reads best with one case a line

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from torch import nn

import monolith as ml
from checkpoint.runs import Run, contents
from monolith.checkpoint import Saver, TrainState
from monolith.hooks import CheckpointRestorerHook, NoFirstSaveCheckpointSaverHook
from monolith.tables.local_shards import LocalShards
from monolith.testing import StepLoop

NO_COUNTERPART = "no counterpart: "

CASES = {
    "SaveUtilsTest.test_get_ckpt_steps": "checkpoint/test_retention.py::test_the_steps_of_a_directory",
    "SaveUtilsTest.test_exempt_checkpoints": "checkpoint/test_retention.py::test_exempt_checkpoints_stay_and_are_not_counted",
    "SaverHookTest.test_basic": "hooks/test_checkpoint_saver.py::test_nothing_at_first_then_every_so_many_steps_and_one_at_the_end",
    "SaverHookTest.test_op_error": "hooks/test_checkpoint_saver.py::test_two_failures_are_raised_and_the_guard_hears_the_end",
    "SaverHookTest.test_trigger_save": "hooks/test_checkpoint_saver.py::test_a_save_on_demand_is_committed_when_it_returns",
    "SaverTest.basicSaveRestore": "checkpoint/test_saver.py::test_a_resumed_run_is_the_run_that_was_not_interrupted",
    "SaverTest.testSaveMaxToKeep": "checkpoint/test_retention.py::test_exempt_checkpoints_stay_and_are_not_counted",
    "SaverTest.testResourceColocation": "checkpoint/test_partial_recovery.py::test_what_is_restored_where",
    "SaverTest.testResourceVariableReadOpsAddedDeterministically": "checkpoint/test_values_and_tensors.py::test_equal_runs_have_equal_manifests_and_descriptions",
    "SaverTest.testEagerBasic": "checkpoint/test_saver.py::test_a_resumed_run_is_the_run_that_was_not_interrupted",
    "SaverTest.testEagerGraphCompatibility": "checkpoint/test_original_cases.py::test_a_plain_loop_and_a_session_read_each_other",
    "SaverTest.testResourceSaveRestoreCachingDevice": NO_COUNTERPART + "a weight has one place; caches of rows are dropped at a cut",
    "SaverTest.testNoAdditionalOpsAddedBySaverForResourceVariablesOutsideSaveScope": NO_COUNTERPART + "there is no graph that a saver could add to",
    "SaverTest.testSaveCopyRestoreWithSaveRelativePaths": "checkpoint/test_retention.py::test_a_moved_directory_is_read_and_continued",
    "SaverTest.testFilenameTensor": "checkpoint/test_restoring.py::test_a_path_can_be_named_in_many_ways_and_a_wrong_one_is_refused",
    "SaverTest.testInvalidPath": "checkpoint/test_restoring.py::test_a_path_can_be_named_in_many_ways_and_a_wrong_one_is_refused",
    "SaverTest.testInt64": "checkpoint/test_restoring.py::test_values_of_all_types_and_int64_extremes",
    "SaverTest.testSomeErrors": "checkpoint/test_failures.py::test_a_cut_that_fails_leaves_the_store_usable",
    "SaverTest.testSameName": "checkpoint/test_values_and_tensors.py::test_what_cannot_be_saved_is_named",
    "SaverTest.testBasicsWithListOfVariables": "checkpoint/test_original_cases.py::test_parts_without_a_model",
    "SaverTest._SaveAndLoad": "checkpoint/test_original_cases.py::test_parts_without_a_model",
    "SaverTest.testCacheRereadsFile": "checkpoint/test_original_cases.py::test_a_checkpoint_that_was_written_again_is_read_again",
    "SaverTest.testAllowEmpty": "checkpoint/test_restoring.py::test_a_state_without_model_or_anything",
    "SaverTest.testGPU": "checkpoint/test_original_cases.py::test_weights_on_a_gpu",
    "SaverTest.testSharedServerOnGPU": NO_COUNTERPART + "variables are not shared between processes by a server",
    "SaverTest.testVariables": "checkpoint/test_restoring.py::test_values_of_all_types_and_int64_extremes",
    "SaverTest.testVarListShouldBeEmptyInDeferredBuild": "checkpoint/test_restoring.py::test_a_saver_may_be_made_before_the_weights",
    "SaverTest.testBuildShouldBeCalledBeforeSaveInCaseOfDeferBuild": NO_COUNTERPART + "a saver is not built: it is given what to save at each save",
    "SaverTest.testDeferredBuild": "checkpoint/test_restoring.py::test_a_saver_may_be_made_before_the_weights",
    "SaverTest.testReshape": "checkpoint/test_restoring.py::test_weights_of_another_shape",
    "SaverTest.testSaveWithGlobalStep": "checkpoint/test_saver.py::test_a_resumed_run_is_the_run_that_was_not_interrupted",
    "SaverTest.testSaveWithGlobalStepWithPadding": "checkpoint/test_restoring.py::test_padded_step_numbers",
    "SaverTest.testSaveToNonexistingPath": "checkpoint/test_failures.py::test_missing_parents_are_made_and_a_file_in_their_place_is_refused",
    "SaverTest.testSaveToURI": "checkpoint/test_remote.py::test_a_run_resumes_from_another_file_system",
    "SaverTest.testSaveRestoreAndValidateVariableDtype": "checkpoint/test_restoring.py::test_values_of_all_types_and_int64_extremes",
    "SaverTest.testRestoreLargeTensors": "checkpoint/test_values_and_tensors.py::test_large_tensors_pass_in_pieces",
    "SaveRestoreShardedTest.testIterators": "checkpoint/test_saver.py::test_a_resumed_run_is_the_run_that_was_not_interrupted",
    "SaveRestoreShardedTest.testIteratorsUnshardedRestore": "cli/test_checkpoint.py::test_reshard",
    "MaxToKeepTest.testMaxToKeepEager": "checkpoint/test_retention.py::test_the_surplus_goes_with_all_its_files_and_nothing_else_does",
    "MaxToKeepTest.testNonSharded": "checkpoint/test_retention.py::test_saving_a_step_again_moves_it_to_the_end",
    "MaxToKeepTest.testSharded": "checkpoint/test_original_cases.py::test_tables_in_shards_go_with_their_checkpoint",
    "MaxToKeepTest.testNoMaxToKeep": "checkpoint/test_retention.py::test_without_a_limit_all_stay",
    "MaxToKeepTest.testNoMetaGraph": "checkpoint/test_original_cases.py::test_without_a_description",
    "RecoverLastCheckpointsTest.test_recover_last_checkpoints": "checkpoint/test_retention.py::test_listed_checkpoints_that_are_gone_are_dropped",
    "KeepCheckpointEveryNHoursTest.testNonSharded": "checkpoint/test_retention.py::test_one_every_so_many_hours_stays_for_good",
    "SaveRestoreWithVariableNameMap.testNonReshapeResourceVariable": "checkpoint/test_restoring.py::test_an_alias_map_renames_weights_and_their_optimizer_state",
    "SaveRestoreWithVariableNameMap.testNonReshapeVariable": "checkpoint/test_restoring.py::test_an_alias_map_renames_weights_and_their_optimizer_state",
    "SecondOrStepTimerWithTideSettingTest.testNoTideSetting": "hooks/test_tide.py::TestSecondOrStepTimerWithTideSetting.test_no_tide_setting",
    "SecondOrStepTimerWithTideSettingTest.testTideAvailable": "hooks/test_tide.py::TestSecondOrStepTimerWithTideSetting.test_tide_available",
    "SecondOrStepTimerWithTideSettingTest.testTideNotAvailable": "hooks/test_tide.py::TestSecondOrStepTimerWithTideSetting.test_tide_not_available",
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("on_every_store")


@pytest.mark.parametrize("case", CASES)
def test_every_case_of_the_original_has_a_test_here_or_a_reason(case: str) -> None:
    shown = CASES[case]
    if shown.startswith(NO_COUNTERPART):
        return
    file, _, name = shown.partition("::")
    tree = ast.parse((Path(__file__).resolve().parent.parent / file).read_text(encoding="utf-8"))
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for each in tree.body:
        if isinstance(each, ast.ClassDef):
            names |= {f"{each.name}.{node.name}" for node in each.body if isinstance(node, ast.FunctionDef)}
    assert name in names


def test_a_plain_loop_and_a_session_read_each_other(tmp_path: Path) -> None:
    run = Run()
    with StepLoop([NoFirstSaveCheckpointSaverHook(Saver(tmp_path), state=run.state)]) as loop:
        for _ in range(3):
            loop.run(run.step)
    plain = Run(seed=2)
    Saver(tmp_path).restore(plain.state)
    assert contents(plain) == contents(run)
    plain.step()
    with Saver(tmp_path) as saver:
        saver.save(plain.state)
    session = Run(seed=3)
    with StepLoop([CheckpointRestorerHook(Saver(tmp_path), state=session.state)]):
        assert contents(session) == contents(plain)


def test_a_checkpoint_that_was_written_again_is_read_again(tmp_path: Path) -> None:
    layer, read = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    with Saver(tmp_path) as saver:
        reader = Saver(tmp_path)
        for value in (1.0, 2.0):
            nn.init.constant_(layer.weight, value)
            saver.save(TrainState(model=layer, global_step=7))
            reader.restore(TrainState(model=read))
            assert read.weight.item() == value
            reader.restore(TrainState(model=read), str(tmp_path / "model.ckpt-7"))
            assert read.weight.item() == value


def test_tables_in_shards_go_with_their_checkpoint(tmp_path: Path) -> None:
    model = ml.Embeddings({"user": ml.Slot(2)}, store=lambda tables: LocalShards(tables, num_shards=3))
    state = TrainState(model=model)
    with Saver(tmp_path, max_to_keep=2) as saver:
        for step in (1, 2, 3):
            model({"user": torch.arange(100 * step)})["user"].sum().backward()
            model.step()
            state.global_step = step
            saver.save(state)
    assert sorted(path.name for path in tmp_path.glob("*.assets")) == ["model.ckpt-2.assets", "model.ckpt-3.assets"]
    whole = ml.Embeddings({"user": ml.Slot(2)})
    Saver(tmp_path).restore(TrainState(model=whole), str(tmp_path / "model.ckpt-2"))
    assert whole.num_rows == 200


class Counter:
    """Something with a state that is no module."""

    def __init__(self, value: int, history: torch.Tensor) -> None:
        self.value, self.history = value, history

    def state_dict(self) -> dict[str, object]:
        return {"value": self.value, "history": self.history}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        assert isinstance(state_dict["value"], int)
        assert isinstance(state_dict["history"], torch.Tensor)
        self.value, self.history = state_dict["value"], state_dict["history"]


def test_parts_without_a_model(tmp_path: Path) -> None:
    parts = {"v0": Counter(10, torch.tensor([1.0])), "v1": Counter(20, torch.zeros(0))}
    with Saver(tmp_path) as saver:
        saver.save(TrainState(extra=parts))
    again = {"v1": Counter(0, torch.ones(1)), "v0": Counter(0, torch.ones(1)), "new": Counter(5, torch.ones(1))}
    Saver(tmp_path).restore(TrainState(extra=again))
    assert {name: part.value for name, part in again.items()} == {"v0": 10, "v1": 20, "new": 5}
    assert again["v0"].history.tolist() == [1.0]
    assert again["v1"].history.shape == (0,)


def test_without_a_description(tmp_path: Path) -> None:
    with Saver(tmp_path, write_meta=False) as saver:
        saver.save(TrainState(model=nn.Linear(1, 1)))
    assert not list(tmp_path.glob("*.meta"))
    assert Saver(tmp_path).restore(TrainState(model=nn.Linear(1, 1))) is not None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("background", [False, True])
def test_weights_on_a_gpu(tmp_path: Path, *, background: bool) -> None:
    model = nn.Linear(3, 2, device="cuda")
    adam = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3, device="cuda")).sum().backward()
    adam.step()
    with Saver(tmp_path, background=background) as saver:
        saver.save(TrainState(model=model, optimizers={"adam": adam}))
        expected = model.weight.detach().clone()
        with torch.no_grad():
            model.weight.zero_()
    for device in ("cuda", "cpu"):
        again = nn.Linear(3, 2, device=device)
        other = torch.optim.Adam(again.parameters())
        Saver(tmp_path).restore(TrainState(model=again, optimizers={"adam": other}))
        assert torch.equal(again.weight.cpu(), expected.cpu())
        assert other.state[again.weight]["exp_avg"].device.type == device
