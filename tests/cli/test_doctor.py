"""``monolith doctor`` tells the truth about versions, core, machine and extras."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch

import monolith
from monolith import _core, cli
from monolith.cli import doctor


def test_lines_name_versions_core_and_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    lines = dict(re.split(r"  +", line, maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["monolith"] == lines["core"] == monolith.__version__
    assert (lines["torch"], lines["numpy"]) == (torch.__version__, np.__version__)
    assert lines["cpu features"].split() == _core.cpu_features()
    assert lines["threads"] == f"{_core.num_threads()} of {_core.cpu_share().affinity} cpus: {_core.cpu_share().why}"
    assert lines["instruction set"].split()[0] == _core.instruction_set()
    assert lines["huge pages"] in {"always", "madvise", "never", "unknown"}
    assert {"extra parquet", "extra kafka", "extra test"} <= set(lines)


def test_json_is_the_same_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["versions"]["core"] == _core.VERSION
    assert report["core_file"] == _core.__file__
    assert report["threads"] == _core.num_threads() >= 1
    assert report["cpus"] >= 1
    assert report["instruction_set"] in report["instruction_sets"]
    assert {extra["name"] for extra in report["extras"]} == set(doctor.extras_of(doctor.DISTRIBUTION))


def test_extras_are_those_of_the_project(project_root: Path) -> None:
    project = tomllib.loads((project_root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own_extras = f"{project['name']}["
    assert project["name"] == doctor.DISTRIBUTION
    declared = {
        extra: sorted(re.split(r"[<>=!~\[]", need)[0] for need in needs if not need.startswith(own_extras))
        for extra, needs in project["optional-dependencies"].items()
    }
    found = {extra: sorted(needs) for extra, needs in doctor.extras_of(doctor.DISTRIBUTION).items()}
    assert found == declared, "or the package was installed before pyproject.toml changed: install it again"


def test_what_is_not_installed_has_no_extras() -> None:
    assert doctor.extras_of("no-such-distribution-of-ours") == {}


def test_a_missing_extra_comes_with_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed = metadata.version

    def without_pyarrow(distribution: str) -> str:
        if distribution == "pyarrow":
            raise metadata.PackageNotFoundError(distribution)
        return installed(distribution)

    monkeypatch.setattr(metadata, "version", without_pyarrow)
    assert cli.main(["doctor"]) == 0
    assert re.search(
        r"extra parquet +missing pyarrow: pip install 'monolith-torch\[parquet\]'",
        capsys.readouterr().out,
    )


def test_huge_pages_that_are_off_come_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "huge_pages", lambda: "never")
    (line,) = doctor.diagnose().advice
    assert "madvise" in line
    assert f"advice  {line}" in re.sub(r"  +", "  ", doctor.describe(doctor.diagnose()))


def test_a_number_of_threads_that_the_program_set_is_reported_as_such() -> None:
    before = _core.num_threads()
    _core.set_num_threads(_core.cpu_share().cpus + 3)
    try:
        assert doctor.diagnose().threads_why == "the program set it"
    finally:
        _core.set_num_threads(before)


def test_other_instruction_sets_come_with_their_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "instruction_set", lambda: "v3")
    monkeypatch.setattr(_core, "instruction_sets", lambda: ["baseline", "v3", "v4"])
    assert "v3 (MONOLITH_CORE_ISA can make it baseline or v4)" in doctor.describe(doctor.diagnose())
    monkeypatch.setattr(_core, "instruction_sets", lambda: ["v3"])
    assert "can make it" not in doctor.describe(doctor.diagnose())
