"""The distribution is `monolith-torch`: `monolith` on the package index is somebody else's, and no text installs it."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import monolith

OTHER_PROGRAM = re.compile(
    r"""
    \bmonolith\\?\[[a-z]                                  # monolith[extra], in a message, a page or a pattern of a test
    | \binstall(\s+-\S+)*["\s]+['"`]?monolith(?![-\w/])   # install monolith, also where a message is broken in two
    | \bpip\ install\ [^&;|`\n]*[\s'"=]monolith(?![-\w/]) # pip install -c constraints.txt monolith
    """,
    re.VERBOSE,
)
TEXTS = ("*.md", "*.toml", "*.py", "*.txt")


def texts_of(root: Path) -> list[Path]:
    folders = [root / name for name in ("benchmarks", "docs", "examples", "src", "tests")]
    files = [path for folder in folders for pattern in TEXTS for path in folder.rglob(pattern)]
    files += [path for pattern in TEXTS for path in root.glob(pattern)]
    files += [path for path in (root / "scripts").rglob("*") if path.is_file() and path.suffix in {"", ".py"}]
    return [path for path in files if path != Path(__file__) and path.name != "CHANGELOG.md"]


def test_no_page_or_message_installs_another_projects_program(project_root: Path) -> None:
    files = texts_of(project_root)
    assert len(files) > 500
    wrong = {}
    for path in files:
        found = [match[0] for match in OTHER_PROGRAM.finditer(path.read_text(encoding="utf-8"))]
        if found:
            wrong[str(path.relative_to(project_root))] = found
    assert wrong == {}


@pytest.mark.parametrize(
    "text",
    [
        "pip install monolith",
        "pip install 'monolith[csv]'",
        "needs monolith[zstd]",
        "run: pip\"\n        \" install 'monolith'",
        "pip install -c constraints.txt -U monolith",
        "pip install torch monolith",
    ],
)
def test_the_search_finds_it_in_every_shape(text: str) -> None:
    assert OTHER_PROGRAM.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install 'monolith-torch[csv]'",
        "pip install -c constraints.txt . && .venv/bin/monolith demo",
        "pip install torch monolith-torch",
        "install monolith_torch-0.1-cp312-abi3.whl",
    ],
)
def test_the_search_leaves_ours_alone(text: str) -> None:
    assert not OTHER_PROGRAM.search(text)


def test_the_installed_distribution_has_the_name_and_the_version(project_root: Path) -> None:
    project = tomllib.loads((project_root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "monolith-torch"
    assert metadata.version("monolith-torch") == monolith.__version__
