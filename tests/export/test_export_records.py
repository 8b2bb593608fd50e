"""Exports of a run are removed with their checkpoints, in every folder that has a part of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolith.export.export_folder import ExportFolder, ExportRecords, versions_in
from monolith.export.manifest import ExportManifest, RowsPlace

if TYPE_CHECKING:
    from pathlib import Path


def publish(folder: Path, version: int, *, step: int) -> None:
    """The parts of an export for two servers, without a model."""
    for part in ("entry", "ps_0", "ps_1"):
        rows = RowsPlace(kind="snapshot", path=f"../../rows/{version}")
        manifest = ExportManifest(name="m", version=version, kind="entry", created=0, step=step, torch="2", rows=rows)
        ExportFolder(str(folder / part / str(version))).publish(manifest)
    (folder / "rows" / str(version)).mkdir(parents=True)


def test_all_parts_of_an_export_are_removed_with_its_checkpoint(tmp_path: Path) -> None:
    records = ExportRecords(str(tmp_path))
    for version in (1, 2):
        publish(tmp_path, version, step=version * 10)
        records.add(version, version * 10)
    assert records.retain({10, 20}) == []
    assert records.retain({20}) == [1]
    for part in ("entry", "ps_0", "ps_1"):
        assert versions_in(str(tmp_path / part)) == [2]
        assert (tmp_path / part / "ExportSaverListenerState").read_text().count("entries") == 1
    assert [each.name for each in (tmp_path / "rows").iterdir()] == ["2"]
