"""The tutorial does what it says, from top to bottom: every command, every file, and the words of every output."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import signal
import sys
import threading
from pathlib import Path

import pytest

from monolith.cli import main

TUTORIAL = Path(__file__).resolve().parent.parent / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d[\d,.]*")


def blocks(text: str) -> list[tuple[str, str]]:
    return BLOCK.findall(text)


class Reader:
    """Follows the page like a reader: writes the files, types the commands, presses Ctrl-C where it says so."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = ""

    def follow(self, page: str) -> None:
        files = iter(["click_ranker.py", "look.py"])
        before = ""
        for kind, block in blocks(page):
            place = page.index(block)
            if kind == "python":
                path = self.folder / next(files)
                path.write_text(block, encoding="utf-8")
                if path.name == "look.py":
                    self.output = printed(lambda path=path: runpy.run_path(str(path)))
            elif kind == "bash" and "pip install" not in block:
                told = page[page.index(before) : place] if before else page[:place]
                self.type(block, presses_ctrl_c="press Ctrl-C" in told.rsplit("##", 1)[-1])
            elif kind == "text":
                assert_same_words(self.output.replace(str(self.folder), "/home/you"), block)
            before = block

    def type(self, commands: str, *, presses_ctrl_c: bool) -> None:
        for line in commands.splitlines():
            program, *arguments = shlex.split(line)
            assert program == "monolith"
            watcher = CtrlC(self.folder / "model") if presses_ctrl_c else contextlib.nullcontext()
            with watcher:
                self.output = printed(lambda arguments=arguments: main(arguments))


class CtrlC:
    """Presses Ctrl-C once the run has saved: then it trains, and listens."""

    def __init__(self, model_dir: Path) -> None:
        self._model_dir = model_dir
        self._before = self._checkpoints()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _checkpoints(self) -> set[str]:
        return {path.name for path in self._model_dir.glob("*.manifest")}

    def _watch(self) -> None:
        while not self._is_over.wait(0.01):
            if self._checkpoints() - self._before:
                os.kill(os.getpid(), signal.SIGINT)
                return


def printed(call: object) -> str:
    """What a call writes to either output."""
    written = io.StringIO()
    with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
        call()  # type: ignore[operator]
    return written.getvalue()


def worded(output: str) -> list[str]:
    """The lines of an output, with a mark instead of each number and one space between words."""
    return [" ".join(line.split()) for line in NUMBER.sub("#", output).strip().splitlines()]


def without_first_progress(lines: list[str]) -> list[str]:
    """Only the last line of progress: a slow machine writes one every ten seconds."""
    progress = [number for number, line in enumerate(lines) if " steps" in line and "examples per second" in line]
    return [line for number, line in enumerate(lines) if number not in progress[:-1]]


def assert_same_words(printed: str, shown: str) -> None:
    """What the page shows is what the command prints; a line of three dots stands for any number of lines."""
    got, expected = without_first_progress(worded(printed)), worded(shown)
    if "..." not in expected:
        assert got == expected
        return
    gap = expected.index("...")
    assert got[:gap] == expected[:gap]
    assert got[gap - len(expected) + 1 :] == expected[gap + 1 :]


@pytest.mark.slow
def test_the_page_can_be_followed_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "argv", ["monolith"])
    page = TUTORIAL.read_text(encoding="utf-8")
    handler = signal.getsignal(signal.SIGINT)
    reader = Reader(tmp_path)
    try:
        reader.follow(page)
    finally:
        sys.modules.pop("click_ranker", None)
        signal.signal(signal.SIGINT, handler)
    steps, auc = reader.output.splitlines()
    assert steps.startswith("20 steps more, ")
    assert float(auc.removeprefix("AUC ")) > 0.68, "the model has learned"
    saved = sorted(int(path.name.split("-")[1].split(".")[0]) for path in (tmp_path / "model").glob("*.manifest"))
    assert saved[:2] == [100, 200]
    assert saved[-1] >= 320, "the run went on where it was stopped"


def test_it_installs_as_the_readme_does() -> None:
    text = TUTORIAL.read_text(encoding="utf-8")
    install = blocks(text)[0][1]
    assert ".venv/bin/python -m pip install -c constraints.txt .\n" in install
    assert "python3 -m venv .venv\n" in install
