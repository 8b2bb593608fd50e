"""``monolith train``, ``worker`` and ``ps TASK`` in a job: who runs what, and what is said when that cannot be."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from monolith.cli import _launching, _roles, main
from monolith.cli._arguments.worker import PLACE, shown_options
from monolith.errors import (
    AbortedError,
    AlreadyExistsError,
    DeadlineExceededError,
    FileUnavailableError,
    OpError,
    StorageFullError,
    UnavailableError,
)
from monolith.launch import LaunchPlan, Role
from monolith.train import RunnerConfig
from monolith.train.config.job_config import JobProgramConfig

TASK = "monolith.testing:ExampleTask"
STAND_IN = Path(__file__).parents[1] / "launch" / "stand_in.py"


def tf_config(kind: str, index: int) -> str:
    cluster = {"ps": ["h:1", "h:2"], "chief": ["h:3"], "worker": ["h:4"]}
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


class Ran:
    """Stands for `distributed_train`, and remembers what it was called with."""

    def __init__(self) -> None:
        self.options: RunnerConfig | None = None
        self.settings = JobProgramConfig()
        self.error: Exception | None = None
        self.is_stopped = False
        self.signal: signal.Signals | None = None

    def __call__(
        self, options: RunnerConfig, service: object, params: object, *, user_hooks: object, settings: JobProgramConfig
    ) -> None:
        self.options, self.settings = options, settings
        if self.error is not None:
            raise self.error
        if self.signal is not None:
            os.kill(os.getpid(), self.signal)
        if self.is_stopped and settings.on_stop is not None:
            settings.on_stop()

    @property
    def place(self) -> tuple[str, int, int, int]:
        assert self.options is not None, "nothing has run"
        options = self.options
        return options.server_type, options.index, options.num_ps, options.num_workers


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Ran:
    found = Ran()
    monkeypatch.setattr(_roles, "distributed_train", found)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    return found


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[LaunchPlan]:
    plans: list[LaunchPlan] = []

    def launch(plan: LaunchPlan, args: argparse.Namespace) -> int:
        plans.append(plan)
        return 0

    monkeypatch.setattr("monolith.cli.train.launch", launch)
    return plans


HOST = ["--discovery_type", "host", "--discovery_dir", "/shared/run"]
JOB = ["--model_dir", "m", "--num_ps", "2", "--num_workers", "3"]


class TestRoles:
    @pytest.mark.parametrize("kind", ["ps", "worker"])
    def test_the_command_is_the_role(self, kind: str, ran: Ran) -> None:
        assert main([kind, TASK, *JOB, *HOST, "--index", "1", "--max_steps", "7", "--deterministic"]) == 0
        assert ran.place == (kind, 1, 2, 3)
        assert (ran.settings.max_steps, ran.settings.deterministic) == (7, True)
        assert ran.options is not None
        assert ran.options.is_local is False

    def test_a_scheduler_specifies_place_and_size(self, ran: Ran) -> None:
        given = ["--model_dir", "m", "--discovery_type", "primus", "--tf_config"]
        assert main(["worker", TASK, *given, tf_config("worker", 0)]) == 0
        assert ran.place == ("worker", 1, 2, 2)
        assert main(["ps", TASK, *given, tf_config("ps", 1)]) == 0
        assert ran.place == ("ps", 1, 2, 2)
        assert main(["train", TASK, *given, tf_config("ps", 0)]) == 0
        assert ran.place == ("ps", 0, 2, 2), "monolith train takes any place"

    def test_the_variable_of_the_scheduler_counts(self, ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TF_CONFIG", tf_config("chief", 0))
        assert main(["worker", TASK, "--model_dir", "m", "--discovery_type", "primus"]) == 0
        assert ran.place == ("worker", 0, 2, 2)

    def test_the_platform_specifies_place_and_size(self, ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MLP_ROLE", "worker")
        monkeypatch.setenv("MLP_ROLE_INDEX", "1")
        for role, number in (("PS", 2), ("WORKER", 3)):
            monkeypatch.setenv(f"MLP_{role}_NUM", str(number))
            for index in range(number):
                monkeypatch.setenv(f"MLP_{role}_{index}_PRIMARY_HOST", "h")
                monkeypatch.setenv(f"MLP_{role}_{index}_PORT", "7")
        assert main(["worker", TASK, "--model_dir", "m", "--discovery_type", "mlp"]) == 0
        assert ran.place == ("worker", 1, 2, 3)

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (
                ["worker", TASK, *HOST, "--num_ps", "1"],
                "--model_dir: set the directory of the model, on storage that",
            ),
            (["worker", TASK, *JOB], "--discovery_type: specify how the processes of the job find each other: "),
            (["worker", TASK, *JOB, "--discovery_type", "host"], "discovery_dir must be a folder that all processes"),
            (["worker", TASK, *JOB, *HOST, "--index", "3"], "the job has 3 workers, so it must be from 0 to 2, got 3"),
            (["ps", TASK, *JOB, *HOST, "--index", "2"], "the job has 2 servers, so it must be from 0 to 1, got 2"),
            (["ps", TASK, *JOB, *HOST, "--index", "-1"], "so it must be from 0 to 1, got -1"),
            (["worker", TASK, "--model_dir", "m", *HOST], "--num_ps: a job has 1 parameter server or more, got 0"),
            (
                ["worker", TASK, *JOB, "--discovery_type", "primus", "--tf_config", tf_config("worker", 0)],
                "--num_workers: primus lists 2, got 3; give 2, or leave it out",
            ),
            (
                ["ps", TASK, "--model_dir", "m", "--discovery_type", "primus", "--tf_config", tf_config("worker", 0)],
                "this is a ps by its command, and worker 1 by primus",
            ),
            (["worker", TASK, *JOB, "--discovery_type", "primus"], "tf_config must hold the TF_CONFIG of this process"),
            (
                ["train", TASK, *JOB, *HOST, "--server_type", "chief"],
                "--server_type: must be ps or worker, got 'chief'",
            ),
            (["worker", "nowhere:Task", *JOB, *HOST], "nowhere"),
        ],
    )
    def test_what_cannot_be_is_one_line(
        self, arguments: list[str], said: str, ran: Ran, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(arguments) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
        assert ran.options is None

    @pytest.mark.parametrize("error", [AbortedError, DeadlineExceededError, UnavailableError])
    def test_a_process_that_lost_the_job_requests_a_restart(
        self, error: type[OpError], ran: Ran, capsys: pytest.CaptureFixture[str]
    ) -> None:
        ran.error = error("server 1 is gone\nfor good")
        assert main(["worker", TASK, *JOB, *HOST]) == 75
        (line,) = capsys.readouterr().err.splitlines()
        assert line == "monolith worker: lost the job, start it again: server 1 is gone for good"

    @pytest.mark.parametrize(
        ("error", "code"),
        [(AlreadyExistsError, 1), (FileUnavailableError, 74), (StorageFullError, 74), (ValueError, 1)],
    )
    def test_other_errors_end_the_job(
        self, error: type[Exception], code: int, ran: Ran, capsys: pytest.CaptureFixture[str]
    ) -> None:
        ran.error = error("it is so")
        assert main(["worker", TASK, *JOB, *HOST]) == code
        assert "it is so" in capsys.readouterr().err

    def test_a_stopped_process_reports_it(self, ran: Ran) -> None:
        ran.is_stopped = True
        assert main(["ps", TASK, *JOB, *HOST]) == 130

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_without_a_waiter_ends_it_in_one_line(
        self, number: signal.Signals, ran: Ran, capsys: pytest.CaptureFixture[str]
    ) -> None:
        ran.signal, before = number, signal.getsignal(number)
        with pytest.raises(SystemExit) as ended:
            main(["worker", TASK, *JOB, *HOST])
        assert ended.value.code == 130
        assert capsys.readouterr().err == f"stopped by {number.name}\n"
        assert signal.getsignal(number) is before

    def test_extra_servers_have_indices_too(self, ran: Ran) -> None:
        assert main(["ps", TASK, *JOB, *HOST, "--index", "4", "--num_extra_ps", "2", "--num_redundant_ps", "1"]) == 0
        assert ran.place == ("ps", 4, 2, 3)

    def test_an_unused_variable_is_reported_as_a_hint(
        self, ran: Ran, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TF_CONFIG", tf_config("chief", 0))
        assert main(["worker", TASK, *JOB]) == 1
        assert "TF_CONFIG is set: did you mean --discovery_type primus?" in capsys.readouterr().err

    @pytest.mark.parametrize("command", [["worker"], ["ps", TASK]])
    def test_help_shows_the_place_first(
        self, command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as stopped:
            main([*command, "--help"])
        assert stopped.value.code == 0
        text = capsys.readouterr().out
        assert all(f"\n{title}:\n" in text for title in ("what to do", *PLACE, "where the model is kept"))
        for name, option in shown_options().items():
            assert text.count(f"  --{name} ") == 1
            assert option.help in text

    def test_a_bare_server_keeps_its_own_help(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            main(["ps", "--help"])
        text = " ".join(capsys.readouterr().out.split())
        assert "--frame_port" in text
        assert "monolith ps TASK --help" in text
        assert "--discovery_type" not in text

    @pytest.mark.parametrize("command", ["worker", "ps"])
    def test_a_role_prints_its_options(self, command: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([command, TASK, "--index", "1", "--print-config", "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert rows["server_type"] == {"value": command, "origin": "code"}
        assert rows["index"] == {"value": 1, "origin": "flag"}

    def test_a_flag_of_another_program_is_answered(self, capsys: pytest.CaptureFixture[str]) -> None:
        for command in ("worker", "ps"):
            with pytest.raises(SystemExit):
                main([command, TASK, "--lr", "0.1"])
            assert "the learning rate belongs to the task" in capsys.readouterr().err


class TestWays:
    @pytest.mark.parametrize(
        ("given", "way"),
        [
            ({}, "alone"),
            ({"num_ps": 2}, "alone"),
            ({"server_type": "worker"}, "alone"),
            ({"num_workers": 2}, "local"),
            ({"num_workers": 2, "num_ps": 1}, "local"),
            ({"num_workers": 2, "server_type": "worker"}, "role"),
            ({"num_workers": 2, "index": 0}, "role"),
            ({"index": 1}, "role"),
            ({"server_type": "ps"}, "role"),
            ({"tf_config": "{}"}, "role"),
        ],
    )
    def test_the_options_specify_which_process_trains(self, given: dict[str, Any], way: str) -> None:
        assert _launching._way_of(RunnerConfig(**given), None) == way
        assert _launching._way_of(RunnerConfig(**given), "ray") == "ray"

    def test_several_workers_are_a_job_of_this_machine(self, launched: list[LaunchPlan]) -> None:
        assert main(["train", TASK, *JOB, "--max_steps", "9", "--deterministic", "--max_restarts", "3"]) == 0
        (plan,) = launched
        assert [str(role) for role in plan.roles] == ["ps 0", "ps 1", "worker 0", "worker 1", "worker 2"]
        assert plan.restarts.limit == 3
        told = plan.command(Role("worker", 2))
        assert told[:5] == [sys.executable, "-m", "monolith", "worker", TASK]
        assert told[-5:] == ["--max_steps", "9", "--deterministic", "--index", "2"]

    def test_one_worker_has_servers_on_request(self, launched: list[LaunchPlan]) -> None:
        assert main(["train", TASK, "--model_dir", "m", "--num_ps", "2", "--launcher", "local"]) == 0
        assert [str(role) for role in launched[0].roles] == ["ps 0", "ps 1", "worker 0"]

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            (["--num_workers", "2"], "--model_dir: set the directory of the model"),
            (["--model_dir", "m", "--num_workers", "2"], "got 0 of them for 2 workers; give --num_ps 1 or more"),
            (["--model_dir", "m", "--launcher", "local"], "give --num_ps 1 or more"),
            ([*JOB, "--steps", "5"], "end at one global step; give it as --max_steps"),
            ([*JOB, "--mode", "eval"], "--mode eval: a job of several processes trains"),
            ([*JOB, "--out", "p.csv"], "--out and --key are of --mode predict"),
            ([*JOB, "--launcher", "local", "--index", "1"], "--index: specifies which process this is"),
            ([*JOB, "--max_restarts", "-1"], "--max_restarts: must be >= 0, got -1"),
            ([*JOB, "--ps_cpus", "2"], "--ps_cpus: is of --launcher ray"),
            (["--model_dir", "m", "--max_restarts", "1"], "--max_restarts: is of --launcher local or --launcher ray"),
            (["--model_dir", "m", "--ray_address", "auto"], "--ray_address: is of --launcher ray"),
        ],
    )
    def test_what_cannot_be_launched_is_one_line(
        self, given: list[str], said: str, launched: list[LaunchPlan], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["train", TASK, *given]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
        assert launched == []

    def test_a_missing_task_is_detected_before_any_process_starts(
        self, launched: list[LaunchPlan], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["train", "nowhere:Task", *JOB]) == 1
        assert "nowhere" in capsys.readouterr().err
        assert launched == []

    def test_a_dry_run_shows_which_processes_would_start(
        self, launched: list[LaunchPlan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        given = ["--model_dir", str(tmp_path / "m"), "--num_ps", "1", "--num_workers", "2", "--uuid", "run"]
        assert main(["train", TASK, *given, "--dry-run", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert list(found["processes"]) == ["ps 0", "worker 0", "worker 1"]
        assert "--uuid run" in found["processes"]["worker 1"]
        assert found["loss"] > 0
        assert launched == []
        assert not (tmp_path / "m").exists()


class TestLaunch:
    """With a program that stands for the roles."""

    def run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: dict[str, str], *given: str) -> int:
        for name, text in words.items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        program = (sys.executable, str(STAND_IN))
        monkeypatch.setattr(
            _launching, "LaunchPlan", lambda **plan: LaunchPlan(**{**plan, "task": str(tmp_path), "program": program})
        )
        num_ps = sum(name.startswith("ps") for name in words)
        job = ["--num_ps", str(num_ps), "--num_workers", str(len(words) - num_ps), "--model_dir", str(tmp_path / "m")]
        return main(["train", TASK, *job, *given])

    def test_its_result_is_one_line_of_json(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = {"ps-0": "done", "worker-0": "die done", "worker-1": "done"}
        assert self.run(tmp_path, monkeypatch, words, "--json") == 0
        shown = capsys.readouterr()
        found = json.loads(shown.out)
        assert (found["model_dir"], found["restarts"]) == (str(tmp_path / "m"), 1)
        assert "[worker 1] done says hello" in shown.err
        assert "steps" not in shown.err, "no progress"

    def test_its_exit_code_is_that_of_the_role_that_failed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.run(tmp_path, monkeypatch, {"ps-0": "done", "worker-0": "fail", "worker-1": "done"}) == 3
        assert "worker 0 failed (exit code 3)" in capsys.readouterr().err
