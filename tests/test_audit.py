"""`scripts/audit` distinguishes a clean answer from no answer; a fake pip-audit gives the answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "audit"

STAND_IN = """
import json, sys
from pathlib import Path

arguments = sys.argv[1:]
wanted = Path(arguments[arguments.index("--requirement") + 1]).read_text().split()
Path(__file__).with_name("asked.json").write_text(json.dumps([arguments, wanted]))
"""
ANSWER = """
answers = [{{"name": name, "version": version, "vulns": []}} for name, version in (each.split("==") for each in wanted)]
{change}
Path(arguments[arguments.index("--output") + 1]).write_text(json.dumps({{"dependencies": answers, "fixes": []}}))
sys.exit({status})
"""


def audit(folder: Path, stand_in: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "pip_audit.py").write_text(STAND_IN + stand_in, encoding="utf-8")
    command = [sys.executable, "-c", _AS_IF_INSTALLED, str(folder), str(SCRIPT), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


# The script starts another Python, which has to find the stand-in as well.
_AS_IF_INSTALLED = """
import os, runpy, sys
folder, script, *options = sys.argv[1:]
sys.path.insert(0, folder)
os.environ["PYTHONPATH"] = folder
sys.argv = [script, *options]
runpy.run_path(script, run_name="__main__")
"""


def asked(folder: Path) -> tuple[list[str], dict[str, str]]:
    arguments, wanted = json.loads((folder / "asked.json").read_text(encoding="utf-8"))
    return arguments, dict(each.split("==") for each in wanted)


def test_no_vulnerability_is_reported_with_the_number_of_packages_checked(tmp_path: Path) -> None:
    done = audit(tmp_path, ANSWER.format(change="", status=0), "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    _, wanted = asked(tmp_path)
    assert report["packages"] == len(wanted) > 5
    assert (report["unknown"], report["weaknesses"]) == ([], {})


def test_versions_are_queried_without_local_labels_and_without_this_project(tmp_path: Path) -> None:
    audit(tmp_path, ANSWER.format(change="", status=0), "--ignore", "PYSEC-1")
    arguments, wanted = asked(tmp_path)
    assert not any("+" in version for version in wanted.values())
    assert "torch" in wanted
    assert "monolith" not in wanted
    assert "--ignore-vuln=PYSEC-1" in arguments


def test_a_vulnerability_is_named_with_the_version_that_fixes_it(tmp_path: Path) -> None:
    change = 'answers[0] |= {"version": "1.0", "vulns": [{"id": "PYSEC-7", "fix_versions": ["1.1"]}]}'
    done = audit(tmp_path, ANSWER.format(change=change, status=1))
    assert done.returncode == 1, done.stderr
    _, wanted = asked(tmp_path)
    assert f"{min(wanted)} 1.0: PYSEC-7, fixed in 1.1" in done.stdout
    assert "no vulnerability found" not in done.stdout


def test_a_few_unlisted_packages_are_named(tmp_path: Path) -> None:
    change = 'answers[0] = {"name": answers[0]["name"], "skip_reason": "not found"}; answers.pop()'
    done = audit(tmp_path, ANSWER.format(change=change, status=0))
    assert done.returncode == 0, done.stderr
    _, wanted = asked(tmp_path)
    assert f"not listed there: {min(wanted)}, {max(wanted)}\n" in done.stdout


NO_ANSWER: dict[str, tuple[Any, str]] = {
    "a service that lists no package": (
        ANSWER.format(change='answers = [{"name": a["name"], "skip_reason": "not found"} for a in answers]', status=0),
        "lists 0 of",
    ),
    "a service that answers nothing": (ANSWER.format(change="answers = []", status=0), "lists 0 of"),
    "no network": ('sys.exit("ConnectionError: name resolution failed")', "name resolution failed"),
    "an answer without text": ('Path(arguments[arguments.index("--output") + 1]).touch()', "status 0: no output"),
}


@pytest.mark.parametrize(("stand_in", "message"), NO_ANSWER.values(), ids=NO_ANSWER)
def test_an_audit_without_an_answer_fails(tmp_path: Path, stand_in: str, message: str) -> None:
    done = audit(tmp_path, stand_in)
    assert done.returncode == 3
    assert done.stdout == ""
    assert message in done.stderr


def test_without_pip_audit_it_reports_how_to_get_it(tmp_path: Path) -> None:
    nobody = "import importlib.util, runpy, sys; importlib.util.find_spec = lambda *_: None; sys.argv = sys.argv[1:]; "
    command = [sys.executable, "-c", nobody + "runpy.run_path(sys.argv[0], run_name='__main__')", str(SCRIPT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "pip install -c constraints.txt 'monolith-torch[audit]'" in done.stderr
