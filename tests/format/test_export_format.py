"""Exports of every version since 2 stay readable and answer the same, and their page is about what is written."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from monolith.errors import DataLossError, FailedPreconditionError, UnimplementedError
from monolith.export.manifest import VERSION, ExportManifest, RowsPlace
from monolith.files import seal
from monolith.serving import Predictor

STORED = sorted(Path(__file__).parent.glob("export_v*"))


def test_every_version_since_2_has_a_stored_export() -> None:
    assert [folder.name for folder in STORED] == [f"export_v{number}" for number in range(2, VERSION + 1)]
    for folder in STORED:
        manifest = json.loads((folder / "export" / "7" / "manifest.json").read_text())
        assert folder.name == f"export_v{manifest['format_version']}"


@pytest.mark.parametrize("folder", STORED, ids=lambda folder: folder.name)
def test_a_stored_export_stays_readable(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "export", tmp_path / "export")
    contents = json.loads((folder / "contents.json").read_text())
    assert contents == json.loads((STORED[0] / "contents.json").read_text()), "all versions store the same model"
    try:
        predictor = Predictor(str(tmp_path / "export"))
    except FailedPreconditionError as error:
        if f"torch {torch.__version__}" not in str(error):
            raise
        pytest.skip(f"the graph needs another torch: {error}")
    with predictor:
        answer = predictor.predict(contents["request"])
    assert (answer.version.export, answer.num_ids, answer.num_found) == (7, 3, 2)
    torch.testing.assert_close(answer.outputs["predictions"], torch.tensor(contents["predictions"]))


def test_a_sealed_manifest_that_is_called_version_2_is_refused() -> None:
    text = (STORED[-1] / "export" / "7" / "manifest.json").read_bytes()
    with pytest.raises(DataLossError, match="crc32c"):
        ExportManifest.from_bytes(text.replace(b'"format_version": 3', b'"format_version": 2'), origin="m")


def test_a_manifest_of_version_3_needs_its_checksum() -> None:
    document = json.loads((STORED[-1] / "export" / "7" / "manifest.json").read_bytes())
    assert ExportManifest.from_bytes(seal(document), origin="m").version == 7
    del document["crc32c"]
    with pytest.raises(DataLossError, match="checksum of the manifest does not match"):
        ExportManifest.from_bytes(json.dumps(document).encode(), origin="m")


def test_a_later_version_is_refused_by_number() -> None:
    text = (STORED[-1] / "export" / "7" / "manifest.json").read_bytes()
    later = text.replace(f'"format_version": {VERSION}'.encode(), f'"format_version": {VERSION + 1}'.encode())
    with pytest.raises(UnimplementedError, match=rf"version {VERSION + 1}; this build reads versions 2 and {VERSION}"):
        ExportManifest.from_bytes(later, origin="m")


def test_the_page_is_about_what_is_written(project_root: Path) -> None:
    text = (project_root / "docs" / "formats" / "export.md").read_text(encoding="utf-8")
    assert f"# Exports, version {VERSION}\n" in text
    assert f'`"monolith-export"`, {VERSION};' in text
    named = set(re.findall(r"`(\w+)`", text))
    for field in (*fields(ExportManifest), *fields(RowsPlace)):
        assert field.name in named, field.name
