"""A checkpoint does not know whether rows were on servers, or on how many, when it was saved or when it is restored."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest
import torch

from checkpoint.runs import Run, tables_of, whole
from monolith.checkpoint import Saver
from monolith.checkpoint.restore.store_restore import restore_table_assets, save_table_assets
from monolith.cli import main
from monolith.errors import DataLossError, InvalidArgumentError
from monolith.ps import PsCluster
from ps.served import served

Place: TypeAlias = int | Literal["process"]
"""Where rows are: on this number of servers, or in this process."""

PLACES: tuple[Place, ...] = ("process", 1, 2, 3, 5)
WIDE = 0x1E3779B97F4A7C15
"""Makes ids of 64 bits of small ones: their keys do not tell their buckets."""

Clusters: TypeAlias = Mapping[int, PsCluster]


@contextmanager
def rows_at(place: Place, clusters: Clusters) -> Iterator[None]:
    """Models that are built inside have their rows there."""
    if isinstance(place, int):
        with served(clusters[place]):
            yield
        return
    yield


class Saved:
    """The same run, saved where its rows were in different places, and how it went on."""

    def __init__(self, folder: Path, clusters: Clusters) -> None:
        self._folder = folder
        self._clusters = clusters
        self._made: dict[Place, tuple[Path, Any, list[float]]] = {}

    def of(self, place: Place) -> tuple[Path, Any, list[float]]:
        """Where it was saved, what it was then, and its next losses."""
        if place not in self._made:
            folder = self._folder / str(place)
            with rows_at(place, self._clusters):
                run = Run(min_count=2, id_factor=WIDE)
                run.steps(6)
                save(run, folder)
                self._made[place] = folder, whole(run), run.steps(3)
        return self._made[place]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, clusters: Clusters) -> Saved:
    return Saved(tmp_path_factory.mktemp("saved"), clusters)


def save(run: Run, folder: Path) -> None:
    with Saver(folder) as saver:
        saver.save(run.state)


@pytest.mark.parametrize("after", PLACES)
@pytest.mark.parametrize("before", PLACES)
def test_a_run_resumes_bit_for_bit_wherever_its_rows_are(
    saved: Saved, clusters: Clusters, before: Place, after: Place
) -> None:
    folder, at_save, losses = saved.of(before)
    with rows_at(after, clusters):
        run = Run(seed=9, min_count=2, id_factor=WIDE)
        run.steps(2)  # what it has is replaced
        Saver(folder).restore(run.state)
        assert whole(run) == at_save
        assert run.steps(3) == losses


def test_all_places_train_the_same(saved: Saved) -> None:
    first, *others = [saved.of(place)[1:] for place in PLACES]
    assert all(other == first for other in others)
    (stamps, blocks), *_ = first[0]
    assert stamps[0].seq == 5
    assert len({kind for kind, *_ in blocks}) == 2  # rows, and what admission has counted


def test_files_hold_the_buckets_of_their_owners_and_the_rows_of_all(saved: Saved) -> None:
    def files(place: Place) -> dict[str, bytes]:
        folder = saved.of(place)[0]
        return {path.name[8:17]: path.read_bytes() for path in sorted(folder.rglob("*.rows"))}

    assert files(1) == files("process")
    assert list(files(1)) == ["0000-1024"]
    assert list(files(3)) == ["0000-0342", "0342-0683", "0683-1024"]
    assert list(files(5)) == ["0000-0205", "0205-0410", "0410-0615", "0615-0820", "0820-1024"]
    counts = {(saved.of(place)[0] / "ckpt.info-6").read_text() for place in PLACES}
    assert len(counts) == 1


@pytest.mark.parametrize("number", [0, 2])
def test_a_damaged_file_of_one_owner_changes_nothing(
    saved: Saved, clusters: Clusters, tmp_path: Path, number: int
) -> None:
    folder = shutil.copytree(saved.of(3)[0], tmp_path / "damaged")
    file = sorted(folder.rglob("*.rows"))[number]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    for after in PLACES:
        with rows_at(after, clusters):
            other = Run(seed=5, min_count=2, id_factor=WIDE)
            other.steps(3)
            held = whole(other)
            with pytest.raises(DataLossError, match=file.name):
                Saver(folder).restore(other.state, str(folder / "model.ckpt-6"))
            assert whole(other) == held


def test_a_background_save_holds_the_cut(clusters: Clusters, tmp_path: Path) -> None:
    with rows_at(3, clusters), Saver(tmp_path, background=True) as saver:
        run = Run()
        run.steps(4)
        at_save = whole(run)
        saver.save(run.state)
        run.steps(6)
        saver.wait()
    other = Run()
    Saver(tmp_path).restore(other.state)
    assert whole(other) == at_save


def test_tables_alone_are_restored_on_any_number_of_servers(clusters: Clusters, tmp_path: Path) -> None:
    with rows_at(3, clusters):
        run = Run()
        run.steps(4)
        save_table_assets(run.state, str(tmp_path / "model.ckpt-4"))
        rows = tables_of(run.model.emb.store)
    for after in PLACES:
        with rows_at(after, clusters):
            other = Run(seed=3)
            assert restore_table_assets(other.state, str(tmp_path / "model.ckpt")) == str(tmp_path / "model.ckpt-4")
            assert tables_of(other.model.emb.store) == rows


def test_a_save_that_fails_releases_the_cut_of_every_server(clusters: Clusters, tmp_path: Path) -> None:
    with rows_at(3, clusters):
        run = Run()
        run.steps(2)
        run.model.register_buffer("@reserved", torch.zeros(1))
        with Saver(tmp_path) as saver, pytest.raises(InvalidArgumentError, match="@ is reserved"):
            saver.save(run.state)
        run.model.emb.store.cut().release()


@pytest.mark.parametrize("place", [1, 3])
def test_the_tools_for_checkpoints_take_it(saved: Saved, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    path, other = (str(saved.of(each)[0] / "model.ckpt-6") for each in (place, "process"))
    assert main(["checkpoint", "verify", path]) == 0
    assert "all as written" in capsys.readouterr().out
    assert main(["checkpoint", "show", path]) == 0
    assert "emb  {'4-adagrad': 69}" in capsys.readouterr().out
    assert main(["checkpoint", "diff", path, other]) == 0
    assert capsys.readouterr().out == "equal\n"
