"""`scripts/build-wheels`: its parts, and the trial it puts every file to; the build itself is not repeated here."""

from __future__ import annotations

import platform
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def script(project_root: Path) -> dict[str, Any]:
    return runpy.run_path(str(project_root / "scripts" / "build-wheels"))


@pytest.mark.slow
def test_the_trial_of_a_wheel_passes_on_what_is_installed_here(project_root: Path) -> None:
    program = [sys.executable, str(project_root / "scripts" / "smoke_installed.py")]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=55)
    assert done.returncode == 0, done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [
        "imported",
        "program",
        "trained",
        "trained and resumed by the command line",
        "doctor",
    ]


@pytest.mark.slow
def test_the_trial_refuses_a_package_that_was_not_installed_for_it(project_root: Path, tmp_path: Path) -> None:
    program = [sys.executable, str(project_root / "scripts" / "smoke_installed.py"), "--installed-below", str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=55)
    assert done.returncode == 1
    assert ", expected a path below" in done.stderr


@pytest.mark.parametrize(
    ("version", "tag"), [((3, 11), "cp311-cp311"), ((3, 12), "cp312-abi3"), ((3, 13), "cp312-abi3")]
)
def test_from_312_on_all_take_the_wheel_of_the_stable_abi(
    script: dict[str, Any], version: tuple[int, int], tag: str
) -> None:
    assert script["Interpreter"]("python", version).wheel_tag == tag


def test_only_a_wheel_that_an_index_takes_gets_through(script: dict[str, Any]) -> None:
    machine = platform.machine()
    script["refuse_other_names"](f"monolith_torch-0.1.0-cp312-abi3-manylinux_2_35_{machine}.whl")
    script["refuse_other_names"](
        f"monolith_torch-0.1.0-cp311-cp311-manylinux2014_{machine}.manylinux_2_17_{machine}.whl"
    )
    for tags in (f"cp311-cp311-linux_{machine}", f"cp312-cp312-manylinux_2_35_{machine}", "py3-none-any"):
        with pytest.raises(script["FailedError"], match="expected monolith_torch-VERSION with"):
            script["refuse_other_names"](f"monolith_torch-0.1.0-{tags}.whl")


def test_no_compiler_is_in_reach_of_the_trial(script: dict[str, Any], tmp_path: Path) -> None:
    look = "import shutil, sys; print([shutil.which(name) for name in sys.argv[1:]])"
    command = [*script["without_compiler"](tmp_path), sys.executable, "-c", look, *script["COMPILERS"]]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=55).stdout
    assert found.strip() == str([None] * len(script["COMPILERS"]))


def test_every_install_is_held_by_the_constraints(script: dict[str, Any], project_root: Path) -> None:
    assert f"PIP_CONSTRAINT={project_root / 'constraints.txt'}" in script["pip"](Path("python"))
    text = (project_root / "scripts" / "build-wheels").read_text(encoding="utf-8")
    installs = [line for line in text.splitlines() if '"install"' in line]
    assert len(installs) == 2
    assert all('"-c", str(CONSTRAINTS)' in line for line in installs)


def test_a_missing_python_is_reported_in_one_line(project_root: Path) -> None:
    program = [sys.executable, str(project_root / "scripts" / "build-wheels"), "--python", "python9.9"]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=55)
    assert done.returncode == 1
    assert done.stderr == (
        "build-wheels: --python python9.9: no such program; give a path or a name on PATH, such as python3.12\n"
    )
