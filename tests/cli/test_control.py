"""``monolith control`` against a session that trains."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hooks.server.certificates import make_certificate
from hooks.server.training import Training, training
from monolith import cli
from monolith.hook import HookedSession
from monolith.hooks.server import ServerCredentials

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Training]:
    with training(str(tmp_path)) as started:
        started.step()
        yield started


def control(action: str, model_dir: Path, *options: str) -> int:
    return cli.main(["control", action, "--model_dir", str(model_dir), *options])


def test_stop_save_status_and_resume(run: Training, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for action in ("status", "stop", "save", "resume"):
        assert control(action, tmp_path) == 0
    assert capsys.readouterr().out.splitlines() == [
        "at step 1; 1 of 1 workers train",
        "stopped at step 1; 0 of 1 workers train, waiting: 0",
        "saved at step 1; 0 of 1 workers train, waiting: 0",
        "resumed at step 1; 1 of 1 workers train",
    ]
    assert run.saver.steps == [1]


def test_json_is_data(run: Training, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for action, blocked in [("stop", [0]), ("status", [0]), ("save", [0]), ("resume", [])]:
        assert control(action, tmp_path, "--json") == 0
        report = json.loads(capsys.readouterr().out)
        assert report == {
            "action": action,
            "global_step": 1,
            "blocked": blocked,
            "unblocked": [] if blocked else [0],
        }


def test_what_goes_wrong_is_one_line(run: Training, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert control("stop", tmp_path) == 0
    capsys.readouterr()
    run.saver.error = OSError("disk\nfull")
    for action, folder, text in [
        ("stop", tmp_path, "training is stopped already; 'monolith control resume' resumes it"),
        ("status", tmp_path / "elsewhere", "is one running with this model_dir, and has it grpcio"),
        ("save", tmp_path, "OSError: disk full"),
    ]:
        assert control(action, folder) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        (line,) = captured.err.splitlines()
        assert line.startswith("monolith control: error: ")
        assert text in line
    run.barrier.remove_barrier()


def test_what_was_done_before_training_ended_is_no_failure(
    run: Training, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save = run.saver.trigger_save

    def save_and_end(session: HookedSession) -> None:
        save(session)
        run.hook._service.session = None

    run.saver.trigger_save = save_and_end  # type: ignore[method-assign]
    assert control("save", tmp_path) == 0
    assert capsys.readouterr().out == "saved; training has ended since\n"
    assert control("status", tmp_path) == 1
    assert "no session trains now" in capsys.readouterr().err


def test_a_dead_training_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "controller_server_addr.txt").write_text("127.0.0.1:1")
    assert control("status", tmp_path) == 1
    assert "controller at 127.0.0.1:1 does not answer" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["control"], ["control", "status"], ["control", "halt", "--model_dir", "m"]])
def test_what_is_not_understood_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("monolith control")


@pytest.mark.parametrize("action", ["status", "stop", "resume", "save"])
def test_every_action_has_help_with_an_example(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["control", action, "--help"])
    assert stopped.value.code == 0
    assert f"example: monolith control {action} --model_dir" in capsys.readouterr().out


def test_token_and_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = make_certificate(tmp_path, "server")
    secret = tmp_path / "token"
    secret.write_text("open sesame\n")
    credentials = ServerCredentials(
        token="open sesame",  # noqa: S106 - a test's
        tls_certificate=server.certificate,
        tls_key=server.key,
    )
    tls = ["--tls_ca", str(server.certificate)]
    with training(str(tmp_path), host="127.0.0.1", credentials=credentials):
        assert control("status", tmp_path, *tls, "--token", "open sesame") == 0
        assert control("status", tmp_path, *tls, "--token_file", str(secret)) == 0
        capsys.readouterr()
        for options, text in [
            ([*tls], "the token is wrong or missing"),
            ([*tls, "--token", "x", "--token_file", str(secret)], "--token and --token_file exclude each other"),
            ([*tls, "--token_file", str(tmp_path / "missing")], "No such file"),
            (["--token", "open sesame", "--timeout_seconds", "5"], "under TLS"),
            ([*tls, "--token", "open sesame", "--timeout_seconds", "0"], "timeout_seconds must be > 0"),
        ]:
            assert control("status", tmp_path, *options) == 1
            assert text in capsys.readouterr().err
