"""The README promises only what runs: its example, its commands and the files it points to."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from monolith.cli import command_names
from serving.server.serving_process import serve_while

README = Path(__file__).resolve().parent.parent / "README.md"
DOCUMENTS = sorted(
    [*README.parent.glob("*.md"), *README.parent.glob("docs/**/*.md"), *README.parent.glob("benchmarks/*.md")]
)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_example_learns(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks("python")
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(example, str(README), "exec"), names)  # noqa: S102 - the reader's first lines, as they stand
    assert names["emb"].num_rows == 1050
    assert names["loss"].item() < 0.0002
    assert capsys.readouterr().out == "1050 rows, loss 0.0001\n"


def test_what_is_served_answers_the_curl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in blocks("bash") if "monolith serve" in block]
    program = block.partition("-c '\n")[2].partition("'\n")[0]
    exec(compile(program, str(README), "exec"), {"__name__": "readme"})  # noqa: S102 - as it stands there
    command = block.splitlines()[-1]
    (curl,) = [block for block in blocks("bash") if block.startswith("curl")]
    _, _, body, url = shlex.split(curl)
    answers: list[Any] = []

    def ask(place: dict[str, Any]) -> None:
        request = urllib.request.Request(url.replace("8501", str(place["port"])), body.encode())  # noqa: S310 - ours
        with urllib.request.urlopen(request, timeout=120) as response:  # noqa: S310 - our own server
            answers.append(json.loads(response.read()))

    assert serve_while(shlex.split(command.replace("8501", "0"))[1:], ask) == 0
    assert [len(answer["predictions"]) for answer in answers] == [2]


def test_example_has_twenty_lines_and_keeps_the_loop_visible() -> None:
    (example,) = blocks("python")
    lines = [line for line in example.splitlines() if line.strip()]
    assert len(lines) <= 20
    assert any(line.startswith("for ") for line in lines)


def test_every_install_command_is_constrained() -> None:
    commands = re.findall(r"pip install[^`\n]*", "\n".join(blocks("bash")))
    assert len(commands) == 3
    assert all("-c constraints.txt" in command for command in commands)


def test_ci_runs_the_test_command() -> None:
    (test_command,) = [block.strip() for block in blocks("bash") if "pytest" in block]
    ci = (README.parent / ".ci" / "run").read_text(encoding="utf-8")
    assert "README.md" in ci
    assert "pytest" in test_command


def test_the_first_command_installs_everything_and_runs_the_demo() -> None:
    first = blocks("bash")[0].strip()
    assert first.splitlines() == [first], "one line to copy"
    setup, install, run = first.split(" && ")
    assert setup == "python3 -m venv .venv"
    assert install == ".venv/bin/python -m pip install -c constraints.txt ."
    assert run == ".venv/bin/monolith demo"
    scripts = tomllib.loads((README.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert scripts["monolith"] == "monolith.cli:main"
    assert "demo" in command_names()


def test_files_it_points_to_exist() -> None:
    text = README.read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:src|core|docs|tests|examples|benchmarks)/[\w./-]*)`", text))
    assert len(paths) > 10
    assert sorted(path for path in paths if not (README.parent / path).exists()) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(README.parent).as_posix())
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\((?!https?://)([^)#]+)[^)]*\)", prose)
    assert sorted(link for link in links if not (document.parent / link).exists()) == []
