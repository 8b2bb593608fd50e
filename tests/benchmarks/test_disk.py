from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.suites.tables import save
from monolith.cli._bench import machine
from monolith.cli._bench.measurement import RowSkippedError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("num_bytes", [0, 1, machine.CHUNK_BYTES, machine.CHUNK_BYTES + 17])
def test_a_plain_write_has_exactly_the_number_of_bytes_requested(tmp_path: Path, num_bytes: int) -> None:
    save.write_plainly(tmp_path / "plain", num_bytes)
    files = machine.files_under(tmp_path)
    assert machine.bytes_of(files) == num_bytes
    assert machine.read_plainly(files) == num_bytes


def test_files_are_found_in_folders_below(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_bytes(b"12")
    (tmp_path / "b").write_bytes(b"3")
    assert [file.name for file in machine.files_under(tmp_path)] == ["x", "b"]
    assert machine.bytes_of(machine.files_under(tmp_path)) == 3


def test_a_scratch_folder_is_deleted_on_exit(tmp_path: Path) -> None:
    with machine.scratch_folder(str(tmp_path), needed_bytes=1) as folder:
        (folder / "x").write_bytes(b"1")
    assert list(tmp_path.iterdir()) == []


def test_too_little_disk_space_skips_the_row_and_names_the_directory(tmp_path: Path) -> None:
    with (
        pytest.raises(RowSkippedError, match=f"in {tmp_path}, .* give --directory"),
        machine.scratch_folder(str(tmp_path), needed_bytes=2**60),
    ):
        pass


def test_files_evicted_from_the_page_cache_can_still_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "DROP_CACHES", tmp_path / "missing" / "drop_caches")
    save.write_plainly(tmp_path / "plain", 12345)
    files = machine.files_under(tmp_path)
    machine.forget_pages(files)
    assert machine.read_plainly(files) == 12345
