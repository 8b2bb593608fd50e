"""The folder that the package lies in."""

from __future__ import annotations

from pathlib import Path

import pytest

import monolith
from monolith.files import find_main, get_libops_path

HERE = Path(monolith.__file__).parent.parent


def test_find_main() -> None:
    assert Path(find_main()) == HERE


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("run/__main__/monolith/files/x.py", "run/__main__"),
        ("a/__main__/b/__main__/monolith/x.py", "a/__main__/b/__main__"),
        ("lib/site-packages/monolith/files/x.py", "lib/site-packages"),
        ("__main__/lib/site-packages/monolith/x.py", "__main__/lib/site-packages"),
        ("monolith/src/monolith/files/x.py", "monolith/src"),
        ("site-packages/work/monolith/x.py", "site-packages/work"),
    ],
)
def test_markers_in_order_and_the_last_occurrence(tmp_path: Path, file: str, expected: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    assert find_main(path) == str(tmp_path / expected)


@pytest.mark.parametrize("file", ["elsewhere/x.py", "site-packages/other/x.py", "monolith/x.py"])
def test_a_path_without_the_package_is_refused_in_full(tmp_path: Path, file: str) -> None:
    path = tmp_path / file  # nothing is made, so nothing is there
    with pytest.raises(ValueError, match=str(path)):
        find_main(path)


def test_get_libops_path() -> None:
    assert get_libops_path("monolith/py.typed") == str(HERE / "monolith" / "py.typed")
    assert Path(get_libops_path("monolith/files/paths.py")).exists()
