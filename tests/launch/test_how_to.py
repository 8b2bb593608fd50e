"""docs/how-to/launch.md: its commands run as they stand."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from programs import Programs

PAGE = "launch.md"
TEXT = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / PAGE).read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
ENDS_HANGS_SECONDS = 280


def run(block: str, folder: Path, programs: Programs) -> subprocess.CompletedProcess[str]:
    with programs.shell_commands(folder / "bin", monolith=["-m", "monolith"]) as variables:
        return subprocess.run(
            ["/bin/bash", "-euc", block],
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=ENDS_HANGS_SECONDS,
        )


def test_the_page_has_the_blocks_that_are_run_here() -> None:
    assert len(BLOCKS) == 5


@pytest.mark.slow
@pytest.mark.parametrize("number", range(5))
def test_a_block_runs_as_it_stands(number: int, tmp_path: Path, programs: Programs) -> None:
    done = run(BLOCKS[number], tmp_path, programs)
    assert done.returncode == 0, done.stderr
    if number == 0:
        assert "step 20 with " in done.stderr
        assert "[worker 1] " in done.stderr
    elif number == 1:
        assert json.loads(done.stdout)["global_step"] == 10
    elif number == 2:
        assert "step 20 with " in done.stderr
    elif number == 3:
        kinds = [each["kind"] for each in yaml.safe_load_all((tmp_path / "job.yaml").read_text(encoding="utf-8"))]
        assert kinds == ["Secret", "Service", "Job", "Job"]
    else:
        assert json.loads((tmp_path / "job.json").read_text(encoding="utf-8"))["name"] == "example-task"
