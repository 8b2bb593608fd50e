"""``monolith ps`` as a process, and what it says when it cannot serve."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from contracts.one_worker import ONE_TABLE, Worker
from monolith import cli
from monolith.ps import PsCluster, PsStore
from ps.recorded import states_in


def started(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "monolith", "ps", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.usefixtures("forked_starts")
def test_it_serves_until_it_receives_a_stop(ending: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("open sesame\n", encoding="utf-8")
    options = ["--token_file", str(tmp_path / "token"), "--threads", "1", "--json"]
    process = started("--index", "1", "--num_ps", "2", *options)
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert (told["index"], told["num_ps"], told["pid"]) == (1, 2, process.pid)
        with pytest.raises(Exception, match="index 1 of 2, expected index 0 of 1"):
            PsCluster([told["address"]], token="open sesame")  # noqa: S106 - a test's
        process.send_signal(ending)
        assert process.wait(60) == 0
        assert process.stdout.read() == ""
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_a_killed_server_recovers_with_its_rows(tmp_path: Path) -> None:
    options = ["--recovery_dir", str(tmp_path / "record"), "--recovery_interval_seconds", "0.05"]
    options += ["--model_dir", str(tmp_path / "model"), "--json"]
    for rows in (None, 3):
        process = started("--index", "0", "--num_ps", "1", *options)
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            assert told["recovered_rows"] == rows
            with PsCluster([told["address"]]) as cluster:
                store = PsStore(ONE_TABLE, servers=cluster)
                Worker(store).train([1, 2, 3])
                record = tmp_path / "record"
                while not any(
                    entry.stamps for each in states_in(record, 0, 1).values() for entry in each.stores.values()
                ):
                    time.sleep(0.01)
                store.close()
        finally:
            process.kill()
            process.communicate()


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_it_reports_its_serving_address_in_one_line() -> None:
    process = started("--index", "0", "--num_ps", "1")
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        assert words[:6] == ["parameter", "server", "0", "of", "1", "serves"]
        with PsCluster([words[7]]) as cluster:
            cluster.stop_servers()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--index", "2", "--num_ps", "2"], "index must be from 0 to num_ps - 1 = 1, got 2"),
        (["--index", "0", "--num_ps", "0"], "num_ps must be from 1 to 1024, got 0"),
        (["--index", "0", "--num_ps", "1", "--token_file", "/nowhere/token"], "/nowhere/token"),
        (["--index", "0", "--num_ps", "1", "--tls_key", "key.pem"], "tls_certificate and tls_key are given together"),
        (["--index", "0", "--num_ps", "1", "--threads", "0"], "num_threads must be >= 1"),
        (["--index", "0", "--num_ps", "1", "--port", "70000"], "port must be from 0 to 65535"),
        (["--index", "0", "--num_ps", "1", "--drain_seconds", "-1"], "--drain_seconds must be >= 0"),
        (["--index", "0", "--num_ps", "1", "--model_dir", "m"], "need --recovery_dir"),
        (["--index", "0", "--num_ps", "1", "--recovery_dir", "s3://b"], "a folder of a file system that is mounted"),
    ],
)
def test_what_goes_wrong_is_one_line(options: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ps", *options]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("monolith ps: error: ")
    assert text in line


def test_a_port_that_is_taken_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for flag in ("--port", "--frame_port"):
            assert cli.main(["ps", "--index", "0", "--num_ps", "1", flag, port]) == 1
            (line,) = capsys.readouterr().err.splitlines()
            assert port in line


def test_a_token_on_the_command_line_is_not_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["ps", "--index", "0", "--num_ps", "1", "--token", "secret"])
    assert "give --token_file" in capsys.readouterr().err
