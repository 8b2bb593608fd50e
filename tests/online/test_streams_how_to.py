"""The how-to of streams runs as it stands, and names every count and every argument."""

from __future__ import annotations

import json
import re
import shlex
import urllib.request
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from monolith import cli
from monolith.cli._arguments.train import STREAM_ONLY
from monolith.online.stream import StreamCounts
from serving.server.serving_process import serve_while

PAGE = "streams.md"


@pytest.mark.slow
def test_the_page_runs(
    project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (project_root / "docs" / "how-to" / PAGE).read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    blocks = re.findall(r"^```(python|bash)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["python", "bash", "python", "bash", "bash"]
    exec(compile(blocks[0][1], PAGE, "exec"), {"__name__": "how_to"})  # noqa: S102 - what the reader runs
    for line in blocks[1][1].splitlines():
        assert cli.main(shlex.split(line)[1:]) == 0
    told = capsys.readouterr()
    assert "positives 15, negatives 85" in told.out
    assert "with 10 rows is saved" in told.out + told.err
    exec(compile(blocks[2][1], PAGE, "exec"), {"__name__": "how_to"})  # noqa: S102 - what the reader runs
    assert capsys.readouterr().out == "10 rows are here\n"
    assert cli.main(shlex.split(blocks[3][1])[1:]) == 0
    answers: list[float] = []

    def ask(place: dict[str, Any]) -> None:
        url = f"http://127.0.0.1:{place['port']}/v1/models/clicks:predict"
        (body,) = re.findall(r"curl -d '(.*)' http://127.0.0.1:8501/v1/models/clicks:predict", text)
        request = urllib.request.Request(url, body.encode())
        with urllib.request.urlopen(request, timeout=120) as response:  # noqa: S310 - our own server
            answers.extend(json.loads(response.read())["predictions"])

    assert serve_while(shlex.split(blocks[4][1].replace("8501", "0"))[1:], ask) == 0
    assert len(answers) == 1
    assert 0.0 < answers[0] < 1.0


def test_every_count_and_argument_is_on_the_page(project_root: Path) -> None:
    text = (project_root / "docs" / "how-to" / PAGE).read_text(encoding="utf-8")
    names = [f"`{field.name}`" for field in fields(StreamCounts)] + [f"--{name}" for name in STREAM_ONLY]
    assert [name for name in names if name not in text] == []
