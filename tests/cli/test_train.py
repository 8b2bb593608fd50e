from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import monolith
from monolith.checkpoint import ModelDirLock
from monolith.checkpoint.inspection import SavedState, resolve
from monolith.cli import main
from monolith.train import RunnerConfig

TASK = "monolith.testing:ExampleTask"


def steps_of(model_dir: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1].split(".")[0]) for path in model_dir.glob("model.ckpt-*.manifest"))


def test_the_same_command_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", TASK, "--model_dir", str(tmp_path / "m"), "--steps", "5"]
    for steps in (5, 10):
        assert main(command) == 0
        shown = capsys.readouterr()
        assert f"step {steps} with " in shown.err
        assert shown.out == ""
    assert steps_of(tmp_path / "m") == [5, 10]


def test_a_run_at_the_end_of_its_data_reports_that_nothing_was_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", TASK, "--model_dir", str(tmp_path / "m")]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["trained_steps"], found["ended_by"]) == (20, "data")
    assert main(command) == 0
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("nothing was trained: the input has no more data; step 20 with ")
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["trained_steps"], found["ended_by"], found["global_step"]) == (0, "data", 20)


def test_progress_shows_step_speed_loss_auc_and_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", TASK, "--model_dir", str(tmp_path), "--max_steps", "8"]) == 0
    line = capsys.readouterr().err.splitlines()[0]
    assert re.fullmatch(r"8/8 steps \(100 %\), examples per second \S+, loss \S+, AUC \S+, rows \S+", line)


def test_expired_rows_are_removed_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = "hooks.day_by_day:DayByDay"
    found = []
    for hours in ((), ("--feature_evict_every_n_hours", "0")):
        assert main(["train", task, "--model_dir", str(tmp_path / f"m{len(hours)}"), "--json", *hours]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[1]["expired_rows"] == 0 < found[0]["expired_rows"] == found[1]["rows"] - found[0]["rows"]
    assert main(["train", task, "--model_dir", str(tmp_path / "shown")]) == 0
    shown = capsys.readouterr().err.splitlines()
    assert shown[-1].endswith(f"; {found[0]['expired_rows']:,} expired rows were removed")


def test_no_existing_file_is_removed(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["train", TASK, "--model_dir", str(tmp_path), "--steps", "2"]) == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_json_is_the_only_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", TASK, "--model_dir", str(tmp_path), "--steps", "2", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["global_step"] == 2
    assert shown.err == ""


def test_modes_evaluate_and_predict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", TASK, "--model_dir", str(tmp_path)]
    assert main(command) == 0
    capsys.readouterr()
    assert main([*command, "--mode", "eval"]) == 0
    assert "auc: 0." in capsys.readouterr().out
    assert main([*command, "--mode=eval", "--json", "--steps", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 32
    assert main([*command, "--mode", "infer", "--steps", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [len(json.loads(line)) for line in lines] == [32, 32]
    assert steps_of(tmp_path) == [20]


def test_predictions_go_to_a_file_with_key_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", TASK, "--model_dir", str(tmp_path / "m")]
    assert main([*command, "--steps", "2"]) == 0
    capsys.readouterr()
    predict = [*command, "--mode", "predict", "--out", str(tmp_path / "p.csv"), "--key", "user", "--key", "item"]
    assert main(predict) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.fullmatch(r"640 rows, rows per second \S+\n640 predictions are in .*/p\.csv\n", shown.err), shown.err
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == "user,item,prediction"
    assert len(lines) == 641
    assert main([*predict, "--steps", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"rows": 32, "out": str(tmp_path / "p.csv")}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--mode", "predict", "--key", "user"],
            "--key: columns are written next to predictions in a file; give --out",
        ),
        (["--out", "p.csv"], "--out and --key are of --mode predict, got --mode train"),
        (["--mode", "eval", "--key", "user"], "--out and --key are of --mode predict, got --mode eval"),
        (["--mode", "predict", "--out", "p.txt"], "expected one of .parquet, .csv, .jsonl, got '.txt'"),
    ],
)
def test_options_of_predictions_without_effect_are_refused(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", TASK, "--model_dir", str(tmp_path / "m"), *options]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


def test_an_interrupted_prediction_leaves_no_file_and_reports_a_restart_from_scratch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["train", TASK, "--model_dir", str(tmp_path / "m")]
    assert main([*command, "--steps", "2"]) == 0
    out = str(tmp_path / "p.csv")

    def interrupt(self: object, context: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("monolith.cli.train._PredictionProgress.after_run", interrupt)
    assert main([*command, "--mode", "predict", "--out", out]) == 130
    assert f"nothing was written to {out}; this command starts from scratch: monolith train" in capsys.readouterr().err
    assert not Path(out).exists()


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", TASK, "--model_dir", str(tmp_path / "m"), "--dry-run"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "begins with: nothing" in shown
    assert "slots: {'user': 4, 'item': 4}" in shown
    assert not (tmp_path / "m").exists()
    assert main([*command[:-1], "--steps", "1"]) == 0
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["begins_with"] == str(tmp_path / "m" / "model.ckpt-1")
    assert steps_of(tmp_path / "m") == [1]


def test_the_config_is_printed_with_its_origins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.toml"
    file.write_text("index = 1\nnum_workers = 2\ncheckpoints_max_to_keep = 3\n")
    monkeypatch.setenv("MONOLITH_NUM_WORKERS", "4")
    monkeypatch.setenv("MONOLITH_INDEX", "2")
    flags = ["--index", "3", "--enable_embedding_postpush", "--sort_id=false", "--config_file", str(file)]
    assert main(["train", TASK, "--print-config", *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["index"] == {"value": 3, "origin": "flag"}
    assert found["num_workers"] == {"value": 4, "origin": "environment"}
    assert found["checkpoints_max_to_keep"] == {"value": 3, "origin": "file"}
    assert found["enable_embedding_postpush"] == {"value": True, "origin": "flag"}
    assert found["sort_id"] == {"value": False, "origin": "flag"}
    assert found["discovery_type"] == {"value": "consul", "origin": "default"}
    assert len(found) == len(RunnerConfig.option_names())
    assert main(["train", TASK, "--print-config", *flags]) == 0
    assert re.search(r"^index +3  \(flag\)$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["monolith.testing:ExampleTsk", "--model_dir", "m"], "has no 'ExampleTsk'; its tasks are ExampleTask"),
        ([TASK], "--model_dir: set the directory"),
        ([TASK, "--model_dir", "m", "--num_extra_ps", "3"], "option num_extra_ps=3 (from flag) is refused"),
        ([TASK, "--model_dir", "m", "--index", "x"], "index must be an integer, got 'x'"),
        ([TASK, "--model_dir", "m", "--params_override", '{"num_batche": 1}'], "did you mean: [num_batches]"),
        ([TASK, "--model_dir", "m", "--config_file", "no.toml"], "config file 'no.toml'"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *arguments]) == 1
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


TF_CONFIG = json.dumps({"cluster": {"ps": ["h:1"], "worker": ["h:2", "h:3"]}, "task": {"type": "ps", "index": 0}})


@pytest.mark.parametrize("by", ["flag", "variable", "file"])
@pytest.mark.parametrize(
    "told",
    [
        {"index": 1, "num_workers": 3},
        {"num_workers": 3},
        {"discovery_type": "primus", "tf_config": TF_CONFIG},
        {"tf_config": TF_CONFIG},
        {"zk_server": "h:2181"},
        {"discovery_type": "zk"},
        {"uuid": "run-7"},
        {"server_type": "ps"},
    ],
    ids="-".join,
)
def test_a_process_of_a_job_does_not_train_a_copy_of_its_own(
    told: dict[str, Any], by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags: list[str] = []
    if by == "file":
        (tmp_path / "run.json").write_text(json.dumps(told))
        flags = ["--config_file", str(tmp_path / "run.json")]
    for name, value in told.items():
        if by == "flag":
            flags += [f"--{name}", str(value)]
        elif by == "variable":
            monkeypatch.setenv(f"MONOLITH_{name.upper()}", str(value))
    assert main(["train", TASK, "--model_dir", str(tmp_path / "m"), "--steps", "5", *flags]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    told_why = (
        r"is refused: it is about a job of several processes|--steps: the processes of a job end at one global step"
    )
    assert re.search(told_why, shown.err)
    assert not (tmp_path / "m").exists(), "it has trained nothing, and written nothing"


def test_an_unknown_option_in_a_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.toml"
    file.write_text("modeldir = 'x'\n")
    assert main(["train", TASK, "--config_file", str(file)]) == 1
    assert "unknown option 'modeldir'; did you mean 'model_dir'?" in capsys.readouterr().err


def test_an_unknown_flag_is_refused_with_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refusal:
        main(["train", TASK, "--modeldir", "m"])
    assert refusal.value.code == 2
    assert "unrecognized arguments: --modeldir m; did you mean --model_dir?" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--monolith_alert_proto", "--monolith_chief_alert_proto"])
@pytest.mark.parametrize("command", [["train", TASK], ["worker", TASK], ["ps", TASK], ["ps", "--index", "0"]])
def test_flags_about_alerts_are_refused_by_name_with_the_reason(
    command: list[str], flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refusal:
        main([*command, "--num_ps", "1", flag, "user: 'me'"])
    assert refusal.value.code == 2
    told = capsys.readouterr().err
    assert f"unrecognized arguments: {flag}" in told
    assert "alerts are not sent from here" in told


def test_a_second_chief_is_refused_with_the_first_ones_identity(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = ModelDirLock(str(tmp_path))
    try:
        assert main(["train", TASK, "--model_dir", str(tmp_path)]) == 1
    finally:
        lock.release()
    assert "in use by process" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_ctrl_c_finishes_the_step_saves_and_reports_how_to_resume(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(
        "from monolith.testing import ExampleTask\n"
        "class Endless(ExampleTask):\n"
        "    @classmethod\n"
        "    def params(cls):\n"
        "        return super().params().set(num_batches=10**9)\n"
        "    def model_fn(self, features, mode):\n"
        "        open('started', 'w').close()\n"
        "        return super().model_fn(features, mode)\n"
    )
    source = str(Path(monolith.__path__[0]).parent)
    run = f"import sys; sys.path.insert(0, {source!r}); from monolith.cli import main; sys.exit(main())"
    program = [sys.executable, "-c", run]
    arguments = ["train", "endless:Endless", "--model_dir", "m 1", "--save_checkpoints_steps", "1000000"]
    process = subprocess.Popen([*program, *arguments], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 240
    while not (tmp_path / "started").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 130, said
    assert "SIGINT: stopping after this step and saving" in said
    assert "resume with: monolith train endless:Endless --model_dir 'm 1' --save_checkpoints_steps 1000000" in said
    (step,) = steps_of(tmp_path / "m 1")
    assert f"step {step:,} with " in said


def test_a_run_without_a_step_reports_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", TASK, "--model_dir", str(tmp_path), "--steps", "0"]) == 0
    assert "no step was trained, and nothing saved" in capsys.readouterr().err
    assert steps_of(tmp_path) == []


CHANGED_TASK = """
import torch

import monolith as ml
from monolith.testing import ExampleTask
from monolith.train import Spec


class Changed(ExampleTask):
    @classmethod
    def params(cls):
        p = super().params()
        p.define("slots", {"user": 8, "item": 8}, "Slot to its dim.")
        return p

    def build(self):
        self.emb = ml.Embeddings({name: ml.Slot(dim=dim) for name, dim in self.p.slots.items()})
        self.top = torch.nn.Linear(sum(self.p.slots.values()), 1)

    def model_fn(self, features, mode):
        columns = {name: features["item" if name == "again" else name] for name in self.p.slots}
        logits = self.top(self.emb(columns).concat()).squeeze(1)
        return Spec(torch.nn.functional.binary_cross_entropy_with_logits(logits, features["label"]))
"""


def test_a_feature_is_added_and_a_dim_changed_from_the_command_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "changed_task.py").write_text(CHANGED_TASK)
    monkeypatch.chdir(tmp_path)

    def train(slots: dict[str, int], *options: str) -> int:
        params = json.dumps({"slots": slots, "num_batches": 20})
        command = ["train", "changed_task:Changed", "--model_dir", "m", "--steps", "4", "--params_override", params]
        return main([*command, *options])

    def weights() -> Any:
        return SavedState(resolve("m")).weights()["top.weight"]

    assert train({"user": 8, "item": 8}) == 0
    wider = {"user": 8, "item": 8, "again": 8}
    assert train(wider) != 0
    assert "--leave_out 'top.weight'" in capsys.readouterr().err
    for step in (8, 12):  # the same command resumes, and keeps what it has trained since
        assert train(wider, "--leave_out", "top.weight") == 0
        assert steps_of(tmp_path / "m")[-1] == step
    assert "leave_out=['top.weight'] was applied to an earlier checkpoint" in caplog.text
    assert weights().shape == (1, 24)
    assert train({"user": 8}, "--leave_out", "top.*") == 0  # the table of the others stays: it is the one of `user`
    other = {"user": 4}
    assert train(other, "--leave_out", "top.weight", "--ignore_unknown_tables") != 0
    assert "--leave_out MODULE.user" in capsys.readouterr().err
    assert train(other, "--leave_out", "top.weight,emb.user") != 0
    assert "--ignore_unknown_tables" in capsys.readouterr().err
    assert train(other, "--leave_out", "top.weight,emb.user", "--ignore_unknown_tables") == 0
    assert weights().shape == (1, 4)
    assert steps_of(tmp_path / "m")[-1] == 20
