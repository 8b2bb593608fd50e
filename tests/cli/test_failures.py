"""What the user's code raises is shown with the user's frames; what the user wrote wrongly is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from monolith.cli import main

TASK = """
import errno
from monolith.testing import ExampleTask

def helper(features):
    return features["usr"]

class Broken(ExampleTask):
    def model_fn(self, features, mode):
        {body}
"""


def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str) -> int:
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    return main(["train", f"{name}:Broken", "--model_dir", "m", "--steps", "2"])


@pytest.mark.parametrize(
    ("number", "body", "last", "status"),
    [
        (1, "helper(features)", "batch has no column 'usr'", 1),
        (2, "raise ValueError('mine')", "ValueError: mine", 1),
        (3, "raise ZeroDivisionError", "ZeroDivisionError", 1),
        (4, "open('no-such-file')", "No such file or directory: 'no-such-file'", 1),
        (5, "raise OSError(errno.EIO, 'disk')", "disk", 74),
        (8, "raise OSError(errno.ENOSPC, 'full')", "full", 74),
        (6, "self.emb.lookup_of_nothing()", "AttributeError: 'Embeddings' object has no attribute", 1),
        (7, "import torch; torch.ones(2) @ torch.ones(3)", "RuntimeError: inconsistent tensor size", 1),
    ],
)
def test_code_of_the_user_shows_its_frames_and_no_other(
    number: int,
    body: str,
    last: str,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert train(tmp_path, monkeypatch, TASK.format(body=body), f"broken_{number}") == status
    lines = capsys.readouterr().err.splitlines()
    begin = lines.index("Traceback (most recent call last):")
    file = tmp_path / f"broken_{number}.py"
    assert lines[begin + 1] == f'  File "{file}", line 10, in model_fn'
    assert last in lines[-2]
    assert lines[-1].startswith(
        f"monolith train: error: your code raised {lines[-2].partition(':')[0].split('.')[-1]} at "
    )
    assert f"{file}:" in lines[-1]


def test_a_module_that_python_cannot_read_is_shown_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, monkeypatch, "x = 1\ny = (\n", "broken_syntax") == 1
    shown = capsys.readouterr().err
    assert "SyntaxError: '(' was never closed" in shown
    assert shown.endswith(f"your code raised SyntaxError at {tmp_path / 'broken_syntax.py'}:2\n")


def test_a_module_that_fails_on_import_shows_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, monkeypatch, "import no_such_package_of_mine\n", "broken_import") == 1
    shown = capsys.readouterr().err
    assert "ModuleNotFoundError: No module named 'no_such_package_of_mine'" in shown
    assert f'File "{tmp_path / "broken_import.py"}", line 1' in shown


def test_an_installed_task_is_the_users_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "broken_installed.py").write_text(TASK.format(body="raise ValueError('mine')"), encoding="utf-8")
    monkeypatch.syspath_prepend(str(installed))
    assert main(["train", "broken_installed:Broken", "--model_dir", str(tmp_path / "m"), "--steps", "2"]) == 1
    assert f"your code raised ValueError at {installed / 'broken_installed.py'}:10" in capsys.readouterr().err


def test_what_we_raise_ourselves_stays_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "show", str(tmp_path / "nothing")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("monolith checkpoint: error: ")
