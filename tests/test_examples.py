"""Every example runs as a user runs it, and prints what it promises."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from programs import Programs

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.py"))


ENDS_HANGS_SECONDS = 900
"""No measure of speed: an example takes some seconds, and a busy machine may need twenty times as many."""

STARTED_ALONE = {"ray_cluster.py"}
"""Examples whose processes something else starts; the others are forks, and so are the processes that they start."""

COMPARISONS = [path for path in EXAMPLES if "def compare(" in path.read_text(encoding="utf-8")]


def run_example(path: Path) -> str:
    # One thread: on a busy machine small operations wait for each other's threads far longer than they compute.
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}  # noqa: TID251 - a child's is its parent's
    # Ray keeps sockets among its files, and names of sockets are short.
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as short:
        try:
            result = subprocess.run(
                [sys.executable, str(path)],
                env={**variables, "RAY_TMPDIR": short},
                capture_output=True,
                text=True,
                check=False,
                timeout=ENDS_HANGS_SECONDS - 60,  # before the limit of the test, which does not know what it said
            )
        except subprocess.TimeoutExpired as hang:
            output = b"\n".join(stream or b"" for stream in (hang.stdout, hang.stderr)).decode(errors="replace")
            pytest.fail(f"{path.name} did not end; its output: {output}\n{logs_of_ray(Path(short))}")
        assert result.returncode == 0, f"{result.stderr}\n{logs_of_ray(Path(short))}"
    return result.stdout


def logs_of_ray(folder: Path) -> str:
    """The last lines that each process of a Ray cluster wrote: the example itself prints only its exit code."""
    logs = sorted(path for path in folder.rglob("worker-*.err") if not path.is_symlink() and path.stat().st_size)
    return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')[-4000:]}" for path in logs)


def forked_example(path: Path, programs: Programs, folder: Path) -> str:
    done = programs.run(path, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(ENDS_HANGS_SECONDS)
@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.name, marks=pytest.mark.starts_first if path.name in STARTED_ALONE else ())
        for path in EXAMPLES
        if path.name != "tables.py"  # a test of its own runs it
    ],
)
def test_example_succeeds_and_prints_its_result(path: Path, programs: Programs, tmp_path: Path) -> None:
    output = run_example(path) if path.name in STARTED_ALONE else forked_example(path, programs, tmp_path)
    assert output.strip()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_fits_on_a_few_screens(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: path.name)
@pytest.mark.parametrize("results", [(0.5, 0.5), (0.0, -1.0)], ids=["no-gain", "too-low"])
def test_example_fails_when_its_claim_does_not_hold(
    path: Path, results: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    monkeypatch.setattr(example, "compare", lambda seed: results)
    monkeypatch.setattr(sys, "argv", [path.name])
    with pytest.raises(AssertionError, match="expected"):
        example.main()


@pytest.mark.timeout(ENDS_HANGS_SECONDS)
def test_tables_prints_a_trained_an_expired_and_a_restored_row(
    project_root: Path, programs: Programs, tmp_path: Path
) -> None:
    lines = forked_example(project_root / "examples" / "tables.py", programs, tmp_path).splitlines()
    rows = {line.split()[0]: [float(weight) for weight in line.split()[1:]] for line in lines}
    assert list(rows) == ["trained", "expired", "restored"]
    assert rows["trained"] == pytest.approx([0.5, -0.25, 0.125, 1.0], abs=0.01)
    assert rows["expired"] == [0.0] * 4
    assert rows["restored"] == rows["trained"]


@pytest.mark.timeout(ENDS_HANGS_SECONDS)
@pytest.mark.parametrize("has_faiss", [True, False], ids=["as-installed", "torch-alone"])
def test_neighbours_are_found_with_and_without_faiss(
    has_faiss: bool, project_root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = project_root / "examples" / "neighbours.py"
    if not has_faiss:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    exec(compile(path.read_text(encoding="utf-8"), path.name, "exec"), {"__name__": "__main__"})  # noqa: S102
    near, _, share = capsys.readouterr().out.splitlines()
    assert all(int(item) % 20 == 0 for item in near.partition(": ")[2].strip("[]").split(","))
    assert share.startswith("100.0%")
