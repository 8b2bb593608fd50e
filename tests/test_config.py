from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import pickle
from dataclasses import field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.config import (
    Config,
    config,
    keywords_of,
    require_at_least,
    require_between,
    require_finite,
    require_positive,
)


@config
class Engine(Config):
    power: float = 1.0
    cylinders: int = 4
    turbo: bool = False
    maker: str = "ours"

    def __post_init__(self) -> None:
        require_positive(self, "power")
        require_at_least(self, 1, "cylinders")


@config
class Diesel(Engine):
    torque: float = 0.5

    def __post_init__(self) -> None:
        Engine.__post_init__(self)
        require_between(self, 0, 1, "torque")


@config
class Car(Config):
    engine: Engine = field(kw_only=False)
    name: str = field(default="car", kw_only=False)
    spares: Any = ()
    options: Any = field(default_factory=dict)
    load_ratio: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "spares", tuple(self.spares))
        require_between(self, 0, 1, "load_ratio", open_end=True)


def test_a_config_never_changes() -> None:
    engine = Engine()
    for name in ("power", "no_such_field"):
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"Engine: {name} cannot change to 2"):
            setattr(engine, name, 2)
    assert not hasattr(engine, "__dict__")
    assert dataclasses.replace(engine, power=2.0) == Engine(power=2.0)


def test_equal_configs_are_equal_and_hash_alike() -> None:
    assert Engine(power=2.0) == Engine(power=2.0)
    assert hash(Engine(power=2.0)) == hash(Engine(power=2.0))
    assert Engine(power=2.0) != Engine(power=3.0)
    assert Engine() != Diesel()


def test_an_unknown_option_names_the_nearest_one() -> None:
    with pytest.raises(TypeError, match=r"^Engine: unknown option 'powr'; did you mean 'power'\?$"):
        Engine(powr=1.0)  # type: ignore[call-arg]


def test_an_unknown_option_like_no_other_lists_them_all() -> None:
    with pytest.raises(TypeError, match=r"'xyzzy'; known are power, cylinders, turbo, maker, torque$"):
        Diesel(xyzzy=1)  # type: ignore[call-arg]


def test_options_are_given_by_name() -> None:
    with pytest.raises(TypeError, match=r"^Engine: options are given all by name, got 1 by position"):
        Engine(1.0)  # type: ignore[call-arg]


def test_a_field_may_be_positional() -> None:
    assert Car(Engine(), "van") == Car(engine=Engine(), name="van")
    with pytest.raises(TypeError, match=r"^Car: options are given at most 2 by position, got 3"):
        Car(Engine(), "van", ())  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^Car: name given both by position and by name$"):
        Car(Engine(), "van", name="bus")  # type: ignore[misc]


def test_a_missing_required_option_raises() -> None:
    with pytest.raises(TypeError, match=r"^Car: option 'engine' is required$"):
        Car()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"power": "1"}, "Engine: power must be a number, got '1'"),
        ({"power": True}, "Engine: power must be a number, got True"),
        ({"power": None}, "Engine: power must be a number, got None"),
        ({"cylinders": 2.0}, "Engine: cylinders must be an integer, got 2.0"),
        ({"cylinders": True}, "Engine: cylinders must be an integer, got True"),
        ({"turbo": 1}, "Engine: turbo must be True or False, got 1"),
        ({"maker": b"x"}, "Engine: maker must be a text, got b'x'"),
    ],
)
def test_plain_values_of_a_wrong_type_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}$"):
        Engine(**options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Engine(power=0), "Engine: power must be > 0, got 0"),
        (lambda: Engine(power=float("nan")), "Engine: power must be finite, got nan"),
        (lambda: Engine(power=float("inf")), "Engine: power must be finite, got inf"),
        (lambda: Engine(cylinders=0), "Engine: cylinders must be >= 1, got 0"),
        (lambda: Diesel(power=-1), "Diesel: power must be > 0, got -1"),
        (lambda: Diesel(torque=1.5), r"Diesel: torque must be in \[0, 1\], got 1.5"),
        (lambda: Diesel(torque=float("nan")), r"Diesel: torque must be in \[0, 1\], got nan"),
        (lambda: Car(Engine(), load_ratio=1.0), r"Car: load_ratio must be in \[0, 1\), got 1.0"),
    ],
)
def test_values_out_of_range_are_refused_by_name(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        make()


def test_finite_is_checked_for_every_name_given() -> None:
    with pytest.raises(ValueError, match="load_ratio"):
        require_finite(_with(Car(Engine()), load_ratio=float("-inf")), "load_ratio")


def _with(subject: Config, **values: Any) -> Config:
    """A config that slipped past its checks."""
    made = copy.copy(subject)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def test_the_ends_of_a_range_belong_to_it() -> None:
    assert Diesel(torque=0).torque == 0
    assert Diesel(torque=1).torque == 1
    assert Engine(cylinders=1).cylinders == 1


def test_a_config_round_trips_through_plain_values() -> None:
    car = Car(Diesel(torque=0.25), spares=[Engine(), 3], options={"a": Engine(power=2.0), "type": Engine()})
    plain = car.to_dict()
    assert plain["type"] == "Car"
    assert plain["engine"]["type"] == "Diesel"
    assert plain["spares"][1] == 3
    assert Car.from_dict(json.loads(json.dumps(plain))) == car


@given(
    power=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    cylinders=st.integers(min_value=1),
    turbo=st.booleans(),
    maker=st.text(),
)
def test_any_config_survives_json_pickle_and_copy(power: float, cylinders: int, turbo: bool, maker: str) -> None:
    engine = Engine(power=power, cylinders=cylinders, turbo=turbo, maker=maker)
    assert Engine.from_dict(json.loads(json.dumps(engine.to_dict()))) == engine
    assert pickle.loads(pickle.dumps(engine)) == engine  # noqa: S301  # our own bytes
    assert copy.deepcopy(engine) == engine


def test_a_dictionary_without_a_type_means_the_requested_class() -> None:
    assert Engine.from_dict({"power": 3.0}) == Engine(power=3.0)


def test_a_parent_makes_its_children_but_not_strangers() -> None:
    assert Engine.from_dict({"type": "Diesel"}) == Diesel()
    with pytest.raises(TypeError, match=r"^Diesel: unknown type 'Engine'"):
        Diesel.from_dict({"type": "Engine"})
    with pytest.raises(TypeError, match=r"^Engine: unknown type 'Desel'; did you mean 'Diesel'\?$"):
        Engine.from_dict({"type": "Desel"})


def test_a_dictionary_with_an_unknown_key_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^Engine: unknown option 'turbos'; did you mean 'turbo'\?$"):
        Engine.from_dict({"turbos": True})
    with pytest.raises(TypeError, match=r"^Engine: unknown option 'powr'"):
        Car.from_dict({"engine": {"type": "Engine", "powr": 1.0}})


def test_a_dictionary_is_checked_like_a_call() -> None:
    with pytest.raises(ValueError, match="Engine: power must be > 0, got -1"):
        Engine.from_dict({"power": -1})


def test_a_name_belongs_to_one_module() -> None:
    class Engine(Config):  # the same name elsewhere
        power: float = 1.0

    Engine.__module__ = "json"
    with pytest.raises(TypeError, match=r"Engine: config name of json is taken by .*test_config"):
        config(Engine)


def test_the_signature_shows_the_options() -> None:
    assert "cylinders: 'int' = 4" in str(inspect.signature(Engine))


class Road:
    """Takes the fields of a config by name."""

    @keywords_of(Diesel)
    def __init__(self, length: int, options: Diesel) -> None:
        self.length = length
        self.options = options


class TestKeywords:
    def test_a_constructor_takes_the_fields_of_a_config(self) -> None:
        road = Road(7, cylinders=6, turbo=True)
        assert (road.length, road.options) == (7, Diesel(cylinders=6, turbo=True))
        assert Road(7).options == Diesel()

    def test_it_refuses_what_the_config_refuses(self) -> None:
        # The comments hold the type checker to the same: without an error there they would be one.
        with pytest.raises(TypeError, match="Diesel: unknown option 'cilinders'; did you mean 'cylinders'"):
            Road(7, cilinders=6)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="Diesel: cylinders must be an integer, got 'six'"):
            Road(7, cylinders="six")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="options are given all by name"):
            Road(7, 6)  # type: ignore[call-arg]

    def test_the_signature_shows_the_fields_with_their_defaults(self) -> None:
        shown = inspect.signature(Road)
        assert list(shown.parameters) == ["length", *(each.name for each in dataclasses.fields(Diesel))]
        assert shown.parameters["cylinders"].default == 4
