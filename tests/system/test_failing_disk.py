"""A disk that fails under a real run: the run ends, says why, and trains nothing twice."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import monolith
from forked_starts import ForkingProcess
from monolith.cli import main

PLAIN = ["train", "counting:Counting", "--model_dir", "m", "--save_checkpoints_steps", "5"]
JOB = [*PLAIN, "--num_ps", "2", "--launcher", "local"]
AHEAD = [*PLAIN, "--embedding_prefetch_capacity", "1", "--enable_embedding_postpush"]
STORAGE_FAILED = 74
ENDS_HANGS_SECONDS = 600

TASK = '''
import os
import time
from monolith.testing import ExampleTask

class Counting(ExampleTask):
    """Notes every batch that it trains, and lets the disk fail from the seventh on."""

    def model_fn(self, features, mode):
        number = int(features["req_time"][0] - 1_700_000_000) // 60
        with open("trained", "a") as file:
            file.write(f"{number}\\\\n")
        if number == 6 and "FAIL_HOW" in os.environ:
            while not os.path.exists("m/ckpt.info-5"):  # written last, in the background
                time.sleep(0.01)
            with open(os.environ["FAIL_SWITCH"], "w") as file:
                file.write(os.environ["FAIL_HOW"])
        return super().model_fn(features, mode)
'''.replace("\\\\n", "\\n")

pytestmark = pytest.mark.timeout(ENDS_HANGS_SECONDS)  # a program starts in each; how fast is the machine's affair

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler, as a build of the project does")
    made = tmp_path_factory.mktemp("library") / "failing_disk.so"
    source = Path(__file__).with_name("failing_disk.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", made, source, "-ldl"], check=True)
    return str(made)


@pytest.fixture(scope="module")
def failing_starts(library: str) -> Iterator[ForkingProcess]:
    """Forks programs that have the library."""
    with ForkingProcess.started(LD_PRELOAD=library) as process:
        yield process


@pytest.fixture
def run(tmp_path: Path, library: str, failing_starts: ForkingProcess) -> Run:
    (tmp_path / "counting.py").write_text(TASK)
    source = str(Path(monolith.__path__[0]).parent)
    program = f"import sys; sys.path.insert(0, {source!r}); from monolith.cli import main; sys.exit(main())"
    failing = {
        "LD_PRELOAD": library,
        "FAIL_FOLDER": str(tmp_path / "m"),
        "FAIL_SWITCH": str(tmp_path / "fails"),
    }

    def start(*, fail: str, arguments: Sequence[str], process: str = "*") -> subprocess.CompletedProcess[str]:
        with failing_starts.forked_starts():
            return subprocess.run(
                [sys.executable, "-c", program, *arguments],
                cwd=tmp_path,
                env={**os.environ, **failing, "FAIL_HOW": fail, "FAIL_PROCESS": process},  # noqa: TID251 - a child's
                capture_output=True,
                text=True,
                timeout=ENDS_HANGS_SECONDS / 2,
                check=False,
            )

    return start


def trained(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "trained").read_text().split()]


def steps_of(model_dir: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1].split(".")[0]) for path in model_dir.glob("model.ckpt-*.manifest"))


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [pytest.param(PLAIN, id="plain"), pytest.param(AHEAD, id="ahead")])
def test_a_disk_that_fails_for_good_ends_the_run_and_keeps_the_checkpoints(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    ended = run(fail="always", arguments=arguments)
    assert ended.returncode == STORAGE_FAILED, ended.stderr
    assert "monolith train: error:" in ended.stderr
    assert "Input/output error" in ended.stderr
    first = trained(tmp_path)
    assert first == list(range(len(first))), "no step is trained twice"
    assert len(first) <= 20
    assert steps_of(tmp_path / "m") == [5]

    (tmp_path / "fails").unlink()
    (tmp_path / "trained").unlink()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "counting", raising=False)
    assert main(arguments) == 0
    assert trained(tmp_path) == list(range(5, 20)), "the same command goes on behind the last checkpoint"


@pytest.mark.slow
def test_a_full_disk_of_one_server_alone_ends_the_job_and_names_server_and_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = run(fail="full", arguments=JOB, process="* ps *--index 1")
    assert ended.returncode == STORAGE_FAILED, ended.stderr
    assert re.search(r"error: parameter server 1 at \S+: file '\S*m/model\.ckpt-\S+': .*No space left", ended.stderr)
    assert "[job]      killing" not in ended.stderr, "every process ends by itself"
    assert steps_of(tmp_path / "m") == [5]

    (tmp_path / "fails").unlink()
    (tmp_path / "trained").unlink()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "counting", raising=False)
    assert main(PLAIN) == 0
    assert trained(tmp_path) == list(range(5, 20)), "the model resumes at the last checkpoint, without servers, too"


@pytest.mark.slow
def test_a_single_failure_is_survived_by_saving_once_more(run: Run, tmp_path: Path) -> None:
    ended = run(fail="once", arguments=PLAIN)
    assert ended.returncode == 0, ended.stderr
    assert not (tmp_path / "fails").exists(), "the failure has happened"
    assert "attempt 1 of 2 failed" in ended.stderr
    assert steps_of(tmp_path / "m") == [5, 10, 15, 20]
    assert trained(tmp_path) == list(range(20)), "every example is trained once"
