"""Which versions there are, in folders that others fill."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from monolith.export import export_folder
from monolith.export.export_folder import versions_in


def make(folder: Path, name: str, *, whole: bool = True) -> None:
    (folder / name).mkdir()
    if whole:
        (folder / name / "manifest.json").touch()


@pytest.mark.parametrize("settled", [-1.0, 5.0])
def test_versions_are_listed_once_they_are_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled: float
) -> None:
    monkeypatch.setattr(export_folder, "_SETTLED_SECONDS", settled)
    for name in ("3", "12", "x", "07", "-1", "\u0663", "9" * 30, "1.5"):
        make(tmp_path, name)
    make(tmp_path, "20", whole=False)
    (tmp_path / "13").touch()
    for _ in range(3):
        assert versions_in(str(tmp_path)) == [3, 12]
    (tmp_path / "20" / "manifest.json").touch()  # which does not change the folder itself
    assert versions_in(str(tmp_path)) == [3, 12, 20]
    assert versions_in(str(tmp_path / "none")) == versions_in(str(tmp_path / "13")) == []


def test_a_folder_that_did_not_change_is_not_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_folder, "_SETTLED_SECONDS", -1.0)
    make(tmp_path, "1")
    listed: list[Path] = []
    scandir = os.scandir

    def counted(path: Path) -> Any:
        listed.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    for _ in range(5):
        assert versions_in(str(tmp_path)) == [1]
    assert len(listed) == 1


def test_of_very_many_versions_only_the_highest_are_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_folder, "MOST_VERSIONS", 3)
    for number in range(10):
        make(tmp_path, str(number))
    assert versions_in(str(tmp_path)) == [7, 8, 9]
