"""docs/how-to/ray.md: its commands run as they stand, on a cluster of their own."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

import pytest

from launch.test_how_to import run
from monolith.launch import LaunchPlan, RayLauncher
from programs import Programs

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "ray.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_command_starts_a_cluster_trains_and_leaves_nothing(
    tmp_path: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = blocks("bash")
    monkeypatch.setenv("HOME", str(tmp_path))  # where Ray keeps the secret of its clusters
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    # Sockets are files below it, and the names of those may have no more than 107 characters.
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    monkeypatch.setenv("RAY_TMPDIR", folder)
    try:
        done = run(block, tmp_path, programs)
    finally:
        shutil.rmtree(folder)
    assert done.returncode == 0, done.stderr
    assert "step 40 with " in done.stderr
    assert "is saved in ranker" in done.stderr
    assert "(ps 0 pid=" in done.stdout + done.stderr, "Ray shows what roles print"
    assert (tmp_path / "ranker" / "checkpoint").exists()


def test_the_plan_of_the_page_is_one() -> None:
    (block,) = blocks("python")
    names: dict[str, object] = {"__name__": "how_to"}
    exec(compile(block, "ray.md", "exec"), names)  # noqa: S102 - the reader's lines, as they stand
    assert isinstance(names["plan"], LaunchPlan)
    assert isinstance(names["launcher"], RayLauncher)
