"""Former names of public packages still work, with a warning that gives the new name."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import warnings
from pathlib import Path

import pytest

import monolith
from monolith._doors import FORMER_NAMES, MOVED_PACKAGES
from monolith.config import Config
from monolith.data import SharedFileQueue
from monolith.data.sources import FilePart
from monolith.launch.role import RestartConfig
from monolith.tables import ALL_BUCKETS, LocalShards, LocalStore, Segment, TableConfig

for _package in pkgutil.walk_packages(monolith.__path__, "monolith."):
    if _package.ispkg and "._" not in _package.name:
        importlib.import_module(_package.name)

CASES = sorted((package, old, new) for package, names in FORMER_NAMES.items() for old, new in names.items())


@pytest.mark.parametrize(("package", "old", "new"), CASES)
def test_a_former_name_is_the_new_one_and_warns(package: str, old: str, new: str) -> None:
    module = importlib.import_module(package)
    with pytest.warns(DeprecationWarning, match=rf"^{package}\.{old} is deprecated .*: use {new}$"):
        found = getattr(module, old)
    home, _, attribute = new.rpartition(".")
    current = importlib.import_module(home or package)
    assert found is getattr(current, attribute)
    assert attribute in current.__all__
    assert old not in module.__all__


def test_names_that_were_never_public_are_still_errors() -> None:
    with pytest.raises(AttributeError, match=r"^module 'monolith\.nn' has no attribute 'Nothing'$"):
        _ = importlib.import_module("monolith.nn").Nothing
    for package, _, _ in CASES:
        assert not hasattr(importlib.import_module(package), "Nothing")


def test_dictionaries_saved_under_a_former_class_name_load() -> None:
    rules = RestartConfig(limit=3)
    saved = rules.to_dict()
    assert saved["type"] == "RestartConfig"
    assert Config.from_dict({**saved, "type": "RestartPolicy"}) == rules


@pytest.mark.parametrize(("old", "new"), sorted(MOVED_PACKAGES.items()))
def test_a_moved_package_is_imported_by_its_old_name_and_warns(old: str, new: str) -> None:
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=rf"^{old} is deprecated .*: import {new}$"):
        module = importlib.import_module(old)
    name = importlib.import_module(new).__all__[0]
    assert getattr(module, name) is getattr(importlib.import_module(new), name)


def test_every_former_public_name_is_still_there() -> None:
    """The list has what packages offered before names and packages were changed; a line may only go with a version."""
    missing = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for line in (Path(__file__).parent / "public_names.txt").read_text(encoding="utf-8").splitlines():
            package, name = line.split()
            if not hasattr(importlib.import_module(package), name):
                missing.append(line)
    assert missing == []


def test_a_queue_of_files_in_a_shared_log_warns(tmp_path: Path) -> None:
    text = r"^monolith\.data\.SharedFileQueue is deprecated and will be removed in the next version: use JobClient\."
    with pytest.warns(DeprecationWarning, match=text) as warned:
        queue = SharedFileQueue(tmp_path / "log", ["a"], num_workers=1)
    assert warned[0].filename == __file__
    assert queue.take(0, 0) == FilePart("a")


def test_local_shards_are_a_local_store_and_warn() -> None:
    text = r"^monolith\.tables\.LocalShards is deprecated and will be removed in the next version: use LocalStore$"
    with pytest.warns(DeprecationWarning, match=text) as warned:
        store = LocalShards({"user": TableConfig([Segment(1)])}, num_shards=3)
    assert warned[0].filename == __file__
    assert isinstance(store, LocalStore)
    with store.cut() as cut:
        assert [clock.buckets for clock in cut.applied] == [ALL_BUCKETS]
