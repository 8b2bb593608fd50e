from __future__ import annotations

from typing import Any

import pytest
import torch

from monolith.train import InstantiableParams, Params, copy_params_to, params, update_params, with_params


@pytest.fixture
def bag() -> Params:
    inner = Params()
    inner.define("max_steps", 100, "Last step.")
    inner.define("sizes", [8, 16], "Sizes.")
    made = Params()
    made.define("name", "ranker", "Its name.")
    made.define("train", inner, "Training.")
    return made


class TestDefine:
    @pytest.mark.parametrize("name", ["Name", "1name", "na-me", "", "_name", "na me", "naMe"])
    def test_names_are_lower_case_after_a_leading_letter(self, name: str) -> None:
        with pytest.raises(AssertionError, match="parameter name"):
            Params().define(name, 0, "")

    def test_a_name_is_defined_once(self, bag: Params) -> None:
        with pytest.raises(AttributeError, match="Parameter name is already defined"):
            bag.define("name", "", "")


class TestAccess:
    def test_by_attribute_by_item_and_by_dotted_name(self, bag: Params) -> None:
        bag.train.max_steps = 7
        assert (bag["train"]["max_steps"], bag.get("train.max_steps"), bag.get("name")) == (7, 7, "ranker")
        bag.set(**{"train.max_steps": 9, "name": "x"})
        assert (bag.train.max_steps, bag.name) == (9, "x")

    def test_an_unknown_name_is_refused_with_those_it_resembles(self, bag: Params) -> None:
        with pytest.raises(AttributeError, match=r"^max_stepz \(did you mean: \[max_steps\]\)$"):
            _ = bag.train.max_stepz
        with pytest.raises(AttributeError, match=r"^zzzz$"):
            bag.zzzz = 1
        with pytest.raises(AttributeError, match=r"did you mean: \[name\]"):
            bag.set(names=1)
        with pytest.raises(AttributeError, match=r"^xy$"):
            bag.get("xy")

    def test_a_list_is_stepped_into_by_index(self, bag: Params) -> None:
        assert bag.get("train.sizes[1]") == 16
        bag.set(**{"train.sizes[0]": 4})
        assert bag.train.sizes == [4, 16]
        bag.delete("train.sizes[0]")
        assert bag.train.sizes == [16]

    def test_bags_in_lists_are_reached(self) -> None:
        inner = Params()
        inner.define("dim", 4, "")
        outer = Params()
        outer.define("towers", [inner, inner.copy()], "")
        outer.set(**{"towers[1].dim": 8})
        assert [tower.dim for tower in outer.towers] == [4, 8]

    @pytest.mark.parametrize("name", ["name.length", "train.max_steps.x"])
    def test_a_plain_value_cannot_be_stepped_into(self, bag: Params, name: str) -> None:
        with pytest.raises(AssertionError, match=r"^Cannot introspect"):
            bag.get(name)
        with pytest.raises(AssertionError, match=r"^Cannot introspect"):
            bag.set(**{name: 1})

    def test_delete_removes_parameters(self, bag: Params) -> None:
        bag.delete("train.max_steps", "name")
        assert "name" not in bag
        assert "max_steps" not in bag.train
        with pytest.raises(AttributeError):
            bag.delete("name")


class TestFreeze:
    def test_a_frozen_level_does_not_change_and_bags_inside_do(self, bag: Params) -> None:
        bag.freeze()
        for change in (
            lambda: bag.set(name="x"),
            lambda: bag.define("x", 1, ""),
            lambda: bag.delete("name"),
            lambda: setattr(bag, "name", "x"),
        ):
            with pytest.raises(TypeError, match="immutable"):
                change()
        bag.train.max_steps = 1
        assert bag.train.max_steps == 1

    def test_a_copy_stays_frozen(self, bag: Params) -> None:
        bag.freeze()
        assert bag.copy().is_frozen
        assert not bag.train.copy().is_frozen


class TestCopy:
    def test_values_are_copied_and_tensors_shared(self, bag: Params) -> None:
        tensor = torch.ones(2)
        bag.define("weights", tensor, "")
        copied = bag.copy()
        copied.train.sizes.append(1)
        assert bag.train.sizes == [8, 16]
        assert copied.weights is tensor
        assert copied != bag
        assert bag == bag.copy()

    def test_copy_params_to_skips(self, bag: Params) -> None:
        target = bag.copy()
        bag.set(name="new", train=Params())
        copy_params_to(bag, target, skip=["train"])
        assert (target.name, target.train.max_steps) == ("new", 100)

    def test_update_params_takes_the_parameters_that_exist(self, bag: Params) -> None:
        given = {"max_steps": 3, "name": "y", "other": 1}
        update_params(bag, given)
        assert (bag.name, bag.train.max_steps, given) == ("y", 3, {"other": 1})


def test_text_is_a_sorted_block_with_nested_ones_indented(bag: Params) -> None:
    assert str(bag) == '{\n  name: "ranker"\n  train: {\n    max_steps: 100\n    sizes: [8, 16]\n  }\n}'


def test_equality_is_of_structure() -> None:
    def made(value: Any) -> Params:
        bag = Params()
        bag.define("x", value, "")
        return bag

    assert made(1) == made(1)
    assert made(1) != made(2)
    assert made(torch.ones(2)) == made(torch.ones(2))
    assert made(torch.ones(2)) != made(torch.ones(3))
    assert made(made(1)) == made(made(1))


class Tower:
    def __init__(self, dim: int, bias: bool = True) -> None:
        self.dim, self.bias = dim, bias


class Wide(Tower):
    def __init__(self, width: int = 3, dim: int = 8, **kwargs: Any) -> None:
        super().__init__(dim)
        self.width, self.kwargs = width, kwargs


class TestParamsOfAClass:
    def test_arguments_of_the_class_and_its_bases_become_parameters(self) -> None:
        p = params(Wide)
        assert (p.cls, p.name, p.width, p.dim, p.bias) == (Wide, "Wide", 3, 8, True)
        assert params(Tower).dim is None
        assert "self" not in p
        assert "kwargs" not in p

    def test_an_object_is_made_with_them(self) -> None:
        p = params(Wide)
        p.set(width=5, dim=2)
        made = p.instantiate()
        assert (made.width, made.dim) == (5, 2)

    def test_layer_keywords_are_passed_on_when_set(self) -> None:
        p = params(Wide)
        p.define("input_dim", None, "")
        p.define("autocast", True, "")
        assert p.instantiate().kwargs == {"autocast": True, "name": "Wide"}

    def test_nested_parameters_are_flattened(self) -> None:
        p = params(Tower)
        p.delete("dim")
        inner = Params()
        inner.define("dim", 6, "")
        p.define("sizes", inner, "")
        assert p.instantiate().dim == 6

    def test_a_class_that_takes_params_gets_them(self) -> None:
        @with_params
        class Layer:
            def __init__(self, params: InstantiableParams) -> None:
                self.p = params

        p = Layer.params()  # type: ignore[attr-defined]
        assert p.instantiate().p is p

    def test_decorated_classes_inherit_and_override_defaults(self) -> None:
        @with_params
        class Base:
            def __init__(self, rate: float = 0.1, size: int = 1) -> None:
                self.rate, self.size = rate, size

        @with_params
        class Derived(Base):
            def __init__(self, rate: float = 0.5, extra: str = "x") -> None:
                super().__init__(rate)
                self.extra = extra

        class Plain(Base):
            pass

        p = Derived.params()  # type: ignore[attr-defined]
        assert (p.cls, p.rate, p.size, p.extra) == (Derived, 0.5, 1, "x")
        assert Base.params().rate == 0.1  # type: ignore[attr-defined]
        assert isinstance(Plain.params().instantiate(), Plain)  # type: ignore[attr-defined]

    def test_a_nested_declaration_of_a_base_is_changed_where_it_is(self) -> None:
        class Base:
            @classmethod
            def params(cls) -> InstantiableParams:
                p = InstantiableParams(cls)
                inner = Params()
                inner.define("rate", 0.1, "")
                p.define("train", inner, "")
                return p

        class Derived(Base):
            def __init__(self, rate: float = 0.7) -> None:
                self.rate = rate

        p = params(Derived)
        assert p.train.rate == 0.7
        assert "rate" not in p
        assert p.instantiate().rate == 0.7

    def test_without_a_class_nothing_is_made(self) -> None:
        with pytest.raises(ValueError, match="cls is None"):
            InstantiableParams().instantiate()

    def test_a_class_without_a_constructor(self) -> None:
        class Empty:
            pass

        assert isinstance(params(Empty).instantiate(), Empty)
