"""docs/how-to/operations.md: its commands run as they stand, and its limits are those of the options."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from monolith.cluster.liveness import NodeAliveCheckerError
from monolith.cluster.manager import POLL_SECONDS
from monolith.hooks.ps_health import EVERY_SECONDS
from monolith.train import RunnerConfig, Task
from programs import Programs

PAGE = "operations.md"
TEXT = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / PAGE).read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
ENDS_HANGS_SECONDS = 280
TOLD = ["", "server 0 at 127.0.0.1:", "step 1", "the features of 20 batches"]
"""What each block says, among other things."""


def test_the_page_has_the_blocks_that_are_run_here() -> None:
    assert len(BLOCKS) == len(TOLD)


@pytest.mark.slow
@pytest.mark.timeout(600)  # all blocks in one test: each needs what those before it wrote
def test_the_blocks_run_as_they_stand(tmp_path: Path, programs: Programs) -> None:
    for block, told in zip(BLOCKS, TOLD, strict=True):
        with programs.shell_commands(tmp_path / "bin", monolith=["-m", "monolith"]) as variables:
            done = subprocess.run(
                ["/bin/bash", "-euc", block],
                cwd=tmp_path,
                env=variables,
                capture_output=True,
                text=True,
                check=False,
                timeout=ENDS_HANGS_SECONDS,
            )
        assert done.returncode == 0, done.stderr
        assert re.search(told, done.stdout + done.stderr), done.stderr
        if told == "step 1":
            saved = re.findall(r"^step (\d+) with \d+ rows is saved", done.stderr, re.MULTILINE)
            first, second, third = map(int, saved)
            assert 40 <= first < 80 <= second < 120 <= third


def test_limits_of_the_page_are_those_of_the_options() -> None:
    table = TEXT.split("## What each time limit does")[1].split("##")[0]
    rows = dict(re.findall(r"^\| `--(\w+)` \| (.*?) \|", table, re.MULTILINE))
    assert len(rows) == 6
    for name, told in rows.items():
        default = RunnerConfig.default_of(name)
        number = re.match(r"\d+", told)
        assert (default == -1) if number is None else (default == float(number[0])), name
    assert Task.params().train.max_pending_seconds_for_barrier == 30
    assert "| check of the servers' memory | 30 s |" in table
    assert EVERY_SECONDS == 30
    assert "| poll for missing processes | 5 s |" in table
    assert POLL_SECONDS == 5
    assert NodeAliveCheckerError.__name__ in table


def test_every_option_of_the_page_exists() -> None:
    known = {*RunnerConfig.option_names(), "slot", "id", "json", "launcher", "max_steps", "index"}
    named = set(re.findall(r"--(\w+)", re.sub(r"`numactl [^`]+`", "", TEXT)))
    assert named - known == set()
