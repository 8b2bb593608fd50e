"""The machine inside Flink makes the examples that the joiner makes of the same events."""

from __future__ import annotations

import base64
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from online.joiner.joins import FolderJoin, append, outcome, traffic


def _why_not() -> str:
    """What is missing here; nothing: it can run."""
    if importlib.util.find_spec("pyflink") is None:
        return "needs apache-flink 2.3 (x86-64 only; examples/flink_join/README.md says how it is installed)"
    java = shutil.which("java")
    if java is None:
        return "Flink needs Java 17, and there is no java"
    told = subprocess.run([java, "-version"], check=False, capture_output=True, text=True).stderr
    found = re.search(r'version "(\d+)', told)
    if found is None or int(found[1]) < 17:
        return f"Flink needs Java 17, java says {told.splitlines()[:1]}"
    return ""


@pytest.mark.skipif(bool(_why_not()), reason=_why_not())
def test_flink_makes_the_same_examples(tmp_path: Path, project_root: Path) -> None:
    impressions, actions, expected = traffic(300)
    join = FolderJoin(tmp_path)
    append(join.impressions, impressions)
    append(join.actions, actions)
    join.run()
    for name, records in (("impressions", impressions), ("actions", actions)):
        (tmp_path / "flink" / name).mkdir(parents=True)
        lines = b"".join(base64.b64encode(record) + b"\n" for record in records)
        (tmp_path / "flink" / name / "events.txt").write_bytes(lines)
    command = [sys.executable, str(project_root / "examples" / "flink_join" / "flink_join.py")]
    command += [f"--{name}={tmp_path / 'flink' / name}" for name in ("impressions", "actions", "output")]
    command += [f"--window_seconds={join.rules.window_seconds}", f"--disorder_seconds={join.rules.disorder_seconds}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    files = [path for path in (tmp_path / "flink" / "output").rglob("*") if path.is_file()]
    found = [base64.b64decode(line) for path in files for line in path.read_bytes().splitlines()]
    assert sorted(found) == sorted(each.example for each in join.examples())
    assert outcome(join.examples()) == expected
