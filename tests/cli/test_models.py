"""`monolith models`: commands to a server in a process of its own, which may die, and what is said of wrong ones."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monolith.cli import main
from serving.server.promoted_models import PATIENCE, Versions, score, wait_until, write_gate
from serving.server.serving_process import serve_while

PAGE = "promotion.md"
ONE = {"inputs": {"user": [100], "x": [1.0]}}


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    versions = Versions(tmp_path_factory.mktemp("models"))
    for version, slope in ((1, 1.0), (2, 2.0), (3, -1.0), (4, 4.0)):
        versions.export(version, slope)
    return versions.folder


@contextlib.contextmanager
def server(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its URL."""
    command = [sys.executable, "-m", "monolith", "serve", *arguments, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            place = json.loads(process.stdout.readline())
            yield process, f"http://127.0.0.1:{place['port']}"
        finally:
            process.kill()


def told(*arguments: str) -> Any:
    """What a command prints as JSON."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(["models", *arguments, "--json"]) == 0
    return json.loads(printed.getvalue())["models"]["ranker"]


def answer(url: str, at: str = "") -> Any:
    request = urllib.request.Request(f"{url}/v1/models/ranker{at}:predict", json.dumps(ONE).encode())  # noqa: S310
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:  # noqa: S310 - our own server
        version = json.loads(response.headers["x-model-version"])["export"]
        return version, pytest.approx(json.loads(response.read())["outputs"][0])


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_a_killed_server_restarts_with_the_state_set_by_commands(
    exports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = tmp_path / "model", tmp_path / "promotion.json"
    for version in ("1", "2"):
        shutil.copytree(exports / version, folder / version)
    gate = write_gate(tmp_path / "gate.json", min_auc=0.9)
    arguments = (f"ranker={folder}", "--promotion_file", str(file), "--gate", str(gate))
    with server(*arguments) as (process, url):
        assert answer(url) == (2, score(2.0))
        assert told("label", "ranker", "previous", "1", "--url", url)["labels"] == {"previous": 1}
        assert answer(url, "/labels/previous") == (1, score(1.0))
        assert told("canary", "ranker", "previous", "--share", "1", "--url", url)["canary"]["share"] == 1.0
        assert answer(url) == (1, score(1.0))
        told("canary", "ranker", "--end", "--url", url)
        told("shadow", "ranker", "1", "--url", url)
        answer(url)
        wait_until(lambda: (told("list", "--url", url)["shadow_scores"] or {}).get("requests") == 1)
        shutil.copytree(exports / "3", tmp_path / "3")
        (tmp_path / "3").rename(folder / "3")  # ranks all wrong
        wait_until(lambda: "3" in told("list", "ranker", "--url", url)["refused"])
        assert main(["models", "rollback", "ranker", "3", "--url", url]) == 1
        assert "version 3 did not pass the gate: AUC 0 is below 0.9" in capsys.readouterr().err
        told("rollback", "ranker", "1", "--url", url)
        assert answer(url) == (1, score(1.0))
        assert main(["models", "list", "--url", url]) == 0
        text = capsys.readouterr().out
        assert text.startswith("ranker: version 1 answers\n")
        for line in ("previous; stable", "not loaded: 2, 3", "version 3 is refused", "shadow: version 1", "gate, last"):
            assert line in text
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
    shutil.copytree(exports / "4", tmp_path / "4")
    (tmp_path / "4").rename(folder / "4")
    with server(*arguments) as (_, url):
        assert answer(url) == (1, score(1.0))
        status = told("list", "--url", url)
        assert (status["labels"], status["shadow"]) == ({"previous": 1, "stable": 1}, {"version": 1})
        told("resume", "ranker", "--url", url)
        wait_until(lambda: told("list", "--url", url)["answers"] == 4)
        assert answer(url) == (4, score(4.0))


@pytest.mark.slow
def test_a_token_is_sent_and_required(exports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret, wrong = tmp_path / "secret", tmp_path / "wrong"
    secret.write_text("sesame\n")
    wrong.write_text("simsim\n")

    def ask(place: dict[str, Any]) -> None:
        url = f"http://127.0.0.1:{place['port']}"
        assert main(["models", "list", "--url", url]) == 1
        assert main(["models", "list", "--url", url, "--token_file", str(wrong)]) == 1
        assert capsys.readouterr().err.count("the token is wrong or missing") == 2
        assert told("list", "--url", url, "--token_file", str(secret))["answers"] == 4

    assert serve_while(["serve", f"ranker={exports}", "--port", "0", "--token_file", str(secret)], ask) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["label", "ranker", "next"], "label: give a version, or --remove"),
        (["label", "ranker", "next", "1", "--remove"], "label: give a version, or --remove"),
        (["label", "ranker", "next", "--remove", "--force"], "has no effect with --remove"),
        (["canary", "ranker", "1"], "canary: give a version or label with --share, or --end"),
        (["canary", "ranker", "--share", "0.1"], "canary: give a version or label with --share, or --end"),
        (["canary", "ranker", "1", "--share", "2"], "--share must be above 0 and at most 1, got 2"),
        (["canary", "ranker", "1", "--share", "nan"], "--share must be above 0 and at most 1, got nan"),
        (["canary", "ranker", "1", "--end"], "canary: --end takes neither a version nor --share nor --force"),
        (["shadow", "ranker"], "shadow: give a version or label, or --end"),
        (["list", "--url", "ftp://a"], "--url: must be http://HOST:PORT or https://HOST:PORT, got 'ftp://a'"),
        (["list", "--url", "http://127.0.0.1:1/x"], "--url: must be"),
        (["list", "--url", "http://127.0.0.1:1", "--tls_ca", "x"], "--tls_ca is for https, and the --url is http"),
        (["list", "--url", "http://127.0.0.1:1"], "http://127.0.0.1:1: no answer: "),
        (["list", "--url", "http://127.0.0.1:999999"], "ort"),
        (["list", "--token_file", "/nowhere/secret"], "/nowhere/secret"),
    ],
)
def test_wrong_arguments_are_one_line(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", *arguments]) == 1
    said = capsys.readouterr().err
    assert said.startswith("monolith models: error: ")
    assert sentence in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (["--keep_versions", "0"], "keep_versions must be >= 1, got 0"),
        (["--gate", "other=gate.json"], "--gate: there is no model 'other'; a model is named as NAME=PATH"),
        (["--gate", "nowhere.toml"], "nowhere.toml"),
        (["--promotion_file", "damaged.json"], "promotion file 'damaged.json' is damaged"),
    ],
)
def test_wrong_options_of_the_server_are_one_line(
    exports: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged.json").write_text("{")
    write_gate(tmp_path / "gate.json")
    assert main(["serve", f"ranker={exports / '1'}", "--port", "0", *option]) == 1
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


@pytest.mark.slow
def test_the_page_runs(
    project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (project_root / "docs" / "how-to" / PAGE).read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```(python|bash|console)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["python", "bash", "console", "python"]
    exec(compile(blocks[0][1], PAGE, "exec"), {"__name__": "how_to"})  # noqa: S102 - what the reader runs
    commands = [line[2:] for line in blocks[2][1].splitlines() if line.startswith("$ ")]
    shown = re.sub(r"[\d.]+", "N", blocks[2][1].partition("\n")[2].partition("$")[0])

    def output_of(command: str, place: dict[str, Any]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            assert main([*shlex.split(command)[1:], "--url", f"http://127.0.0.1:{place['port']}"]) == 0, command
        return printed.getvalue()

    def ask(place: dict[str, Any]) -> None:
        first, *others, last = commands
        assert re.sub(r"[\d.]+", "N", output_of(first, place)) == shown
        for command in others:
            output_of(command, place)
        while (status := json.loads(output_of(last, place))["models"]["ranker"])["answers"] != 2:
            time.sleep(0.05)  # after `resume` the server loads the newest version again when it next looks for one
        assert (status["labels"], status["canary"], status["shadow"]) == ({}, None, None)

    command = blocks[1][1].replace("--port 8501", "--port 0")
    assert serve_while(shlex.split(command)[1:], ask) == 0
    exec(compile(blocks[3][1], PAGE, "exec"), {"__name__": "how_to"})  # noqa: S102 - what the reader runs
    assert capsys.readouterr().out.endswith("1\n")
