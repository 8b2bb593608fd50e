"""Former names of public packages still work, with a warning that gives the new name."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import monolith
from monolith._deprecated import FORMER_NAMES, former_names
from monolith.config import Config
from monolith.launch.restarts import RestartConfig

for _package in pkgutil.walk_packages(monolith.__path__, "monolith."):
    if _package.ispkg and "._" not in _package.name:
        importlib.import_module(_package.name)

CASES = sorted((package, old, new) for package, names in FORMER_NAMES.items() for old, new in names.items())


@pytest.mark.parametrize(("package", "old", "new"), CASES)
def test_a_former_name_is_the_new_one_and_warns(package: str, old: str, new: str) -> None:
    module = importlib.import_module(package)
    with pytest.warns(DeprecationWarning, match=rf"^{package}\.{old} is deprecated .*: use {new}$"):
        found = getattr(module, old)
    assert found is getattr(module, new)
    assert new in module.__all__
    assert old not in module.__all__


def test_names_that_were_never_public_are_still_errors() -> None:
    get = former_names("monolith.nn", FORMER_NAMES["monolith.nn"])
    with pytest.raises(AttributeError, match=r"^module 'monolith\.nn' has no attribute 'Nothing'$"):
        get("Nothing")
    for package, _, _ in CASES:
        assert not hasattr(importlib.import_module(package), "Nothing")


def test_dictionaries_saved_under_a_former_class_name_load() -> None:
    rules = RestartConfig(limit=3)
    saved = rules.to_dict()
    assert saved["type"] == "RestartConfig"
    assert Config.from_dict({**saved, "type": "RestartPolicy"}) == rules
