"""Formats keep their promises: documented versions and numbers, and old files that stay readable."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from monolith import _core
from monolith.errors import DataLossError
from monolith.tables.formats.row_block import MAGIC, VERSION
from monolith.tables.snapshot import FORMAT_VERSION, read_manifest, restore
from monolith.tables.snapshot.manifest import MANIFEST_NAME

STORED = sorted(Path(__file__).parent.glob("v*"))


def page(root: Path, name: str) -> str:
    return (root / "docs" / "formats" / name).read_text(encoding="utf-8")


def constant(root: Path, source: str, name: str) -> int:
    text = (root / "core" / "format" / source).read_text(encoding="utf-8")
    found = re.search(rf"constexpr uint\d+_t {name} = (0x[0-9a-f]+|\d+)u?;", text)
    assert found is not None, f"{name} is not in {source}"
    return int(found[1], 0)


def test_the_snapshot_page_is_about_the_version_that_is_written(project_root: Path) -> None:
    text = page(project_root, "snapshot.md")
    assert f"# Snapshots, version {FORMAT_VERSION}\n" in text
    assert f"`monolith.tables.snapshot.FORMAT_VERSION` = {FORMAT_VERSION}." in text
    assert f'`"monolith-snapshot"`, {FORMAT_VERSION} |' in text


def test_the_pages_name_the_versions_and_magic_numbers_of_the_core(project_root: Path) -> None:
    snapshot, block = page(project_root, "snapshot.md"), page(project_root, "row_block.md")
    file_version = constant(project_root, "snapshot_file.cc", "kVersion")
    assert snapshot.count(f" 2   version, {file_version}\n") == 2
    for name in ("kHeaderMagic", "kFooterMagic"):
        assert f"magic {constant(project_root, 'snapshot_file.cc', name):#x} " in snapshot
    block_version = constant(project_root, "row_block.cc", "kVersion")
    assert f"# Row blocks, version {block_version}\n" in block
    assert f"2    version, {block_version}\n" in block
    assert f"magic {constant(project_root, 'row_block.cc', 'kMagic'):#x} " in block
    assert (constant(project_root, "row_block.cc", "kMagic"), block_version) == (MAGIC, VERSION)


def test_the_vectors_of_the_bucket_page_are_right(project_root: Path) -> None:
    def mix64(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    rows = re.findall(r"^\| (-?\d+) \| (0x[0-9a-f]{16}) \| (\d+) \|$", page(project_root, "buckets.md"), re.MULTILINE)
    assert len(rows) >= 10
    for key, digest, bucket in rows:
        assert mix64((int(key) + 0x9E3779B97F4A7C15) % 2**64) == int(digest, 16)
        assert int(digest, 16) >> 54 == int(bucket)
    ids = np.array([int(key) for key, _, _ in rows], np.int64)
    assert _core.bucket_of(ids).tolist() == [int(bucket) for _, _, bucket in rows]


def test_the_record_example_of_the_entry_dump_page_is_right(project_root: Path, tmp_path: Path) -> None:
    found = re.search(r"payload `abc`: `([0-9a-f ]+)`", page(project_root, "entry_dump.md"))
    assert found is not None
    path = tmp_path / "records"
    _core.write_records(str(path), str(path) + ".tmp", [b"abc"], snappy=False)
    assert path.read_bytes() == bytes.fromhex(found[1])
    assert _core.read_records(str(path), snappy=False) == [b"abc"]


def test_the_checksum_example_of_the_row_block_page_is_right(project_root: Path) -> None:
    assert f"`123456789` is {_core.crc32c(b'123456789'):#x}" in page(project_root, "row_block.md")


def maker(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"make_{folder.name}", folder / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_version_so_far_has_a_stored_snapshot() -> None:
    assert [folder.name for folder in STORED] == [f"v{number}" for number in range(1, FORMAT_VERSION + 1)]


@pytest.mark.parametrize("folder", STORED, ids=lambda folder: folder.name)
def test_a_stored_snapshot_stays_readable(folder: Path) -> None:
    stored = maker(folder)
    restored = stored.group()
    restored.mark()  # who follows the tables hears of removals
    report = restore(restored.store, folder / "snapshot")
    assert report.extra == {"made_by": f"tests/format/{folder.name}/make.py"}
    assert report.generation == 7
    assert report.rows == {"item": 22, "user": 21}
    assert stored.contents(restored) == json.loads((folder / "contents.json").read_text())
    assert restored["user"].tombstones().tolist() == [3]
    before = len(restored["user"])
    restored["user"].apply_gradients(np.array([3]), np.zeros((1, 3), np.float32))
    assert len(restored["user"]) == before + 1, "the filter remembers that it has seen id 3"


def test_a_later_version_is_refused_by_number(tmp_path: Path) -> None:
    shutil.copytree(STORED[-1] / "snapshot", tmp_path / "snapshot")
    manifest = tmp_path / "snapshot" / MANIFEST_NAME
    text = manifest.read_text()
    manifest.write_text(text.replace(f'"version": {FORMAT_VERSION}', f'"version": {FORMAT_VERSION + 1}'))
    with pytest.raises(
        DataLossError, match=f"snapshot version {FORMAT_VERSION + 1}, this build reads versions up to {FORMAT_VERSION}"
    ):
        read_manifest(tmp_path / "snapshot")
