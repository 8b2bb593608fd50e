"""A missing or stale extension is one ImportError that names the file, both versions and the command that mends it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import monolith
from monolith import _core, environment
from monolith._load_core import REBUILD_COMMAND


def import_doctored(package_parent: Path) -> str:
    """Import the copy of the package below ``package_parent`` in a fresh interpreter; return the last line of stderr.

    Without the site module the installed package is out of reach: the guard must speak before anything else is
    imported.
    """
    program = f"import sys; sys.path.insert(0, {str(package_parent)!r}); import monolith"
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=50, check=False
    )
    assert result.returncode == 1, result.stderr
    return result.stderr.strip().splitlines()[-1]


@pytest.fixture
def doctored(tmp_path: Path) -> Path:
    """A copy of the Python files of the package, without the extension."""
    source = Path(monolith.__file__).parent
    shutil.copytree(source, tmp_path / "monolith", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return tmp_path


def test_core_has_the_version_of_the_package() -> None:
    assert monolith.__version__ == _core.VERSION


def test_core_has_the_ten_bits_of_buckets_that_files_rely_on() -> None:
    assert _core.NUM_BUCKETS == 1024


def test_missing_core_names_the_place_searched_and_the_rebuild_command(doctored: Path) -> None:
    message = import_doctored(doctored)
    assert message.startswith(
        "ImportError: monolith's C++ core is missing or stale: the extension was not built: searched"
    )
    assert str(doctored / "monolith" / "_core*.so") in message
    assert f"version found: none, needed: {monolith.__version__}" in message
    assert message.endswith(REBUILD_COMMAND)


def test_older_core_names_its_file_and_both_versions(doctored: Path) -> None:
    stale = doctored / "monolith" / "_core.py"
    stale.write_text('VERSION = "0.0.9"\n')
    message = import_doctored(doctored)
    assert message.startswith(f"ImportError: monolith's C++ core is missing or stale: {stale} is of another version")
    assert f"version found: 0.0.9, needed: {monolith.__version__}" in message
    assert message.endswith(REBUILD_COMMAND)


def test_core_from_before_versions_is_stale(doctored: Path) -> None:
    (doctored / "monolith" / "_core.py").write_text("")
    assert "version found: unknown" in import_doctored(doctored)


def test_core_that_does_not_load_is_named_with_the_loaders_reason(doctored: Path) -> None:
    broken = doctored / "monolith" / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    broken.write_text("not a library")
    message = import_doctored(doctored)
    assert re.search(rf"{re.escape(str(broken))} cannot be loaded by Python 3\.\d+ \(.+\)", message)
    assert message.endswith(REBUILD_COMMAND)


def imported_with(instruction_set: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that prints the instruction set of its core."""
    return subprocess.run(
        [sys.executable, "-c", "import monolith; print(monolith._core.instruction_set())"],
        env=environment.starting_with("") | {"MONOLITH_CORE_ISA": instruction_set},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_the_variable_chooses_among_the_instruction_sets_of_the_processor() -> None:
    for name in ("baseline", _core.instruction_sets()[-1]):
        result = imported_with(name)
        assert result.stdout.strip() == name, result.stderr


def test_an_instruction_set_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    result = imported_with("avx9")
    assert result.returncode == 1
    assert result.stderr.strip().splitlines()[-1] == (
        "ValueError: MONOLITH_CORE_ISA: instruction set must be one of baseline, v3, v4, got 'avx9'"
    )
    with pytest.raises(ValueError, match="must be one of baseline, v3, v4, got ''"):
        _core.use_instruction_set("")
    for name in {"baseline", "v3", "v4"} - set(_core.instruction_sets()):
        with pytest.raises(ValueError, match=rf"'{name}' is not to be had .* only baseline"):
            _core.use_instruction_set(name)
