"""``monolith demo``: the race is honest and repeatable, and its command behaves on a terminal and off it."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from forked_starts import ForkingProcess
from monolith.cli import main
from monolith.cli._demo.contestants import BYTES_PER_BARE_ROW, STAGES, Frozen, Hashed, Online
from monolith.cli._demo.race import BATCH_SIZE, MEMORY_BYTES, MODELS, WORLD, Race, RaceConfig, RaceProgress
from monolith.data import ClickStream

COMMAND = [sys.executable, "-c", "import sys; from monolith.cli import main; sys.exit(main(sys.argv[1:]))", "demo"]


def drawings(page: str) -> list[ET.Element]:
    return [ET.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]  # noqa: S314 - ours


def stream(num_examples: int) -> ClickStream:
    return ClickStream(num_examples, batch_size=BATCH_SIZE, seed=1, world=WORLD)


@pytest.fixture(scope="module")
def finished(forking: ForkingProcess, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, str]:
    """A race without a terminal: its JSON, its report, and what it said on the way."""
    report = tmp_path_factory.mktemp("demo") / "report.html"
    command = [*COMMAND, "--examples", "240000", "--seed", "3", "--json", "--out", str(report)]
    with forking.forked_starts():
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout), report.read_text(encoding="utf-8"), done.stderr


@pytest.mark.slow
def test_the_online_model_ends_above_the_hashed_and_the_frozen_one(
    finished: tuple[dict[str, Any], str, str],
) -> None:
    result, _, said = finished
    auc = result["auc"]
    assert auc["best"] > auc["online"] > auc["hashed"] + 0.004
    assert auc["online"] > auc["frozen"] + 0.02
    assert said == ""


@pytest.mark.slow
def test_the_comparison_is_of_equal_memory_and_rows_expire(finished: tuple[dict[str, Any], str, str]) -> None:
    result, _, _ = finished
    assert result["memory_bytes"]["online"] <= result["memory_bytes"]["hashed"] == MEMORY_BYTES
    assert result["frozen_day"] == 1.0, "a sixth of the race"
    windows = result["windows"]
    assert [window["examples"] for window in windows] == list(range(24_000, 240_001, 24_000))
    assert sum(window["expired"] for window in windows) == result["expired"] > 100
    assert sum(window["inserted"] - window["expired"] for window in windows) == result["rows"]
    before = [window for window in windows if window["day"] <= result["frozen_day"]]
    assert all(window["auc"]["frozen"] == window["auc"]["online"] for window in before)


@pytest.mark.slow
def test_the_report_has_plots_of_every_model_and_loads_nothing(finished: tuple[dict[str, Any], str, str]) -> None:
    result, page, _ = finished
    assert "{{" not in page
    assert re.findall(r"(?:src|href|url)\s*[=(]", page) == [], "it lies where no documents are"
    assert "http" not in page
    assert f"{result['auc']['online']:.3f}" in page
    charts = drawings(page)
    lines = [line for chart in charts[:2] for line in chart if line.tag == "polyline"]
    assert all(len(line.attrib["points"].split()) == len(result["windows"]) for line in lines)
    found = [sum(line.tag == "polyline" for line in chart) for chart in charts]
    assert found == [len(MODELS), len(MODELS), 2, 2, 2, 2], "AUC, rows and flow, each for wide and for narrow pages"
    for chart in charts:
        texts = [text.text for text in chart if text.tag == "text"]
        assert "day of traffic" in texts
    assert page.count("<tr><td>") == len(result["windows"])
    assert page.count('class="stage"') == len(STAGES)
    assert sum(result["stages"].values()) == pytest.approx(result["seconds"], rel=0.05)
    assert 0 < result["online_seconds"] < result["seconds"]


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_a_terminal_gets_a_live_view_and_its_cursor_back(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    report = tmp_path / "report.html"
    command = [*COMMAND, "--seconds", "2", "--out", str(report)]  # stopped by the time limit
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}  # noqa: TID251 - for the child
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment) as process:
        os.close(terminal)
        seen = b""
        while True:
            try:
                chunk = os.read(controller, 65536)
            except OSError:  # the terminal is closed at the other end
                break
            if not chunk:
                break
            seen += chunk
        assert process.wait() == 0
    os.close(controller)
    text = seen.decode()
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
    assert text.index("\x1b[?25l") < text.index("\x1b[?25h")
    assert text.count("monolith demo    day ") >= 3, "drawn anew as time goes by"
    assert "examples/s" in text
    assert "hashed ids, same memory" in text
    assert report.resolve().as_uri() in text.splitlines()[-1]
    assert re.search(r"The run was stopped after [\d,]+ of 1,200,000 examples: the models are not compared", text)
    assert len(drawings(report.read_text(encoding="utf-8"))) == 6


@pytest.mark.slow
@pytest.mark.usefixtures("forked_starts")
def test_ctrl_c_ends_it_with_a_report_of_what_was_seen(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    command = [*COMMAND, "--out", str(report)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        first = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, rest = process.communicate()
    assert process.returncode == 130
    assert first.startswith("day 1.0: 40,000 examples, ")
    assert "Traceback" not in rest
    assert out.endswith(f"Report with plots: {report.resolve().as_uri()}\n")
    page = report.read_text(encoding="utf-8")
    for text in (out, page):
        assert re.search(r"The run was stopped after [\d,]+ of 1,200,000 examples: the models are not compared\.", text)
        assert not re.search(r"\d (above|below) ", text)
    assert "AUC of the last quarter" not in page


def test_races_repeat_exactly_and_differ_by_seed() -> None:
    def outcome(seed: int) -> Any:
        progress = Race(RaceConfig(examples=8_000, seconds=None), seed=seed).run(lambda _: True)
        return [(window.auc, window.rows, window.inserted, window.expired) for window in progress.windows]

    one, other = outcome(1), outcome(1)
    assert len(one) == 4
    assert one == other
    assert outcome(2) != one


def test_a_prediction_does_not_see_its_own_click() -> None:
    (batch,) = stream(BATCH_SIZE)
    flipped = {name: batch[name] for name in batch} | {"label": 1.0 - cast("Tensor", batch["label"])}
    for contestant in (lambda: Online(0), lambda: Hashed(MEMORY_BYTES, WORLD, 0)):
        one, other = contestant().judge(batch), contestant().judge(type(batch)(flipped, num_rows=BATCH_SIZE))
        assert torch.equal(one, other)


def test_the_frozen_model_is_an_exact_copy_that_never_changes() -> None:
    online = Online(0)
    *learned, asked = list(stream(5 * BATCH_SIZE))
    for batch in learned:
        online.judge(batch)
    frozen = Frozen(online, 0)
    rows = frozen.model.embeddings.num_rows
    at_first = frozen.judge(asked)
    assert torch.equal(online.judge(asked), at_first)
    assert torch.equal(frozen.judge(asked), at_first)
    assert frozen.model.embeddings.num_rows == rows
    assert not torch.equal(online.judge(asked), at_first), "the online model learned from that batch"


def test_the_hashed_model_fits_into_its_memory() -> None:
    hashed = Hashed(200_000, WORLD, 0)
    for batch in stream(5 * BATCH_SIZE):
        hashed.judge(batch)
    rows = hashed.model.embeddings.num_rows
    assert 0.9 * 200_000 < rows * BYTES_PER_BARE_ROW <= 200_000


def test_a_race_stops_where_its_callback_or_limit_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def stop_at_third(progress: RaceProgress) -> bool:
        calls.append(progress.examples)
        return len(calls) < 3

    progress = Race(RaceConfig(examples=400_000), seed=0).run(stop_at_third)
    assert calls == [BATCH_SIZE, 2 * BATCH_SIZE, 3 * BATCH_SIZE]
    assert len(progress.windows) == 1, "what was seen is measured, however short"
    assert not progress.is_complete
    short = Race(RaceConfig(examples=BATCH_SIZE + 7, seconds=None), seed=0).run(lambda _: True)
    assert (short.examples, short.is_complete) == (BATCH_SIZE + 7, True)
    late = Race(RaceConfig(examples=400_000, seconds=1e-9), seed=0).run(lambda _: True)
    assert (late.examples, late.is_complete) == (BATCH_SIZE, False)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--examples", "0"], "--examples must be at least 1, got 0"),
        (["--seconds", "0"], "--seconds must be above 0 and finite, got 0.0"),
        (["--seconds", "nan"], "--seconds must be above 0 and finite, got nan"),
        (["--out", "no/such/folder.html"], "--out: expected a file in an existing folder, got no/such/folder.html"),
        (["--out", "."], "--out: expected a file, got the folder ."),
    ],
)
def test_wrong_arguments_are_refused_in_one_line_before_anything_runs(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *arguments]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"monolith demo: error: {complaint}")
