"""The feature list file is read as written, and what is wrong in it is named by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from monolith.data.feature_list import FeatureList

TEXT = """
# raw columns
column_name: uid, item_id,  city
column_name: age
feed_name=uid; shared=true; feature_id=3
feed_name=city, shared=no
cache_column: uid
cache_name=recent; capacity=100; timeout=60; cache_type=lru

feature_name=fc_user; depend=uid; method=Hash; slot=5; shared=YES   # the user
feature_name=f_item;depend=item_id;method=Hash;slot=600;feature_version=2
feature_name=fc_user-fc_city; depend=uid,city; method=Cross; args=n=5,x; slot=7; need_raw=true
feature_name=fc_plain, depend=age, method=Direct
"""


def test_every_entry_of_the_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "feature_list.conf"
    path.write_text(TEXT, encoding="utf-8")
    features = FeatureList.read(str(path))
    assert features == FeatureList.parse(TEXT)
    assert features.columns == ("uid", "item_id", "city", "age")
    assert features.cache_columns == ("uid",)
    assert features.feeds["uid"] == {"feed_name": "uid", "shared": "true", "feature_id": "3"}
    assert features.feeds["city"]["shared"] == "no"
    assert features.caches["recent"]["capacity"] == "100"
    user, cross = features["fc_user"], features[7]
    assert (user.slot, user.version, user.is_shared, user.depends) == (5, 1, True, ("uid",))
    assert (cross.name, cross.depends, cross.options["args"]) == ("fc_user-fc_city", ("uid", "city"), "n=5,x")
    assert features["f_item"].version == 2
    assert features["fc_plain"].slot is None
    assert features["fc_plain"].options["method"] == "Direct"
    assert features.slots() == {"fc_user": 5, "f_item": 600, "fc_user-fc_city": 7}


def test_names_are_found_with_and_without_their_prefix() -> None:
    features = FeatureList.parse(TEXT)
    assert features["user"].name == "fc_user"
    assert features["item"].name == "f_item"
    assert features["user-city"].slot == 7
    assert features["600"].name == "f_item"
    assert features.find("nobody") is None
    assert "nobody" not in features
    assert 5 in features
    with pytest.raises(KeyError, match="no feature 'nobody'; it has fc_user, f_item"):
        features["nobody"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("column_name: a\nsomething", "line 2: expected column_name:, cache_column:, or keys"),
        ("depend=a; method=b", "line 1: expected column_name:"),
        ("feature_name=; slot=1", "line 1: feature_name is empty"),
        ("feature_name=a\nfeature_name=a", "line 2: 'a' is listed twice"),
        ("feature_name=a; slot=x", "slot of 'a' must be an integer >= 0, got 'x'"),
        ("feature_name=a; slot=-1", "slot of 'a' must be an integer"),
        ("feature_name=a; slot=1024", "slot of 'a' must be below 1024 in layout 1, got 1024"),
        ("feature_name=a; slot=1; feature_version=3", "feature_version of 'a' must be 1 or 2"),
        ("feature_name=a; slot=1\nfeature_name=b; slot=1", "'a' and 'b' have one slot, 1"),
    ],
)
def test_wrong_lines_are_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FeatureList.parse(text)


def test_an_empty_file_has_no_features() -> None:
    assert FeatureList.parse("# nothing\n\n").slots() == {}
