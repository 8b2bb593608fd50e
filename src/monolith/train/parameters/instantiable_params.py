"""`InstantiableParams`: settings of a class, derived from the signature of its constructor."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, TypeVar

from monolith.train.parameters.params import Params

if TYPE_CHECKING:
    from collections.abc import Mapping

C = TypeVar("C", bound=type)

ALLOWED_KWARGS: Final = frozenset(
    {
        "input_dim",
        "input_shape",
        "batch_input_shape",
        "weights",
        "activity_regularizer",
        "autocast",
        "implementation",
        "name",
    }
)
"""Keywords of layers that are passed on when they are set, whether or not the constructor names them."""


class InstantiableParams(Params):
    """`Params` with `cls`, the class that `instantiate` makes an object of.

    >>> class Tower:
    ...     def __init__(self, dim=8):
    ...         self.dim = dim
    >>> p = params(Tower)
    >>> p.dim = 16
    >>> p.instantiate().dim
    16
    """

    def __init__(self, cls: type | None = None) -> None:
        super().__init__()
        self.define("cls", cls, "Cls that this param object is associated with.")

    def instantiate(self, **kwargs: Any) -> Any:
        """Constructs an object of `cls`.

        A constructor that takes only the parameters, of a class with `params`, gets them; any other one gets those of
        its arguments that are declared here or in nested parameters, and the layer keywords that are not None.

        Args:
            **kwargs: Arguments of the constructor that are not parameters, or override them.

        Raises:
            ValueError: `cls` is not set.
        """
        if self.cls is None:
            raise ValueError("instantiate: cls is None; make the parameters with params(YourClass)")
        arguments = constructor_parameters(self.cls)
        if list(arguments) == ["params"] and hasattr(self.cls, "params"):
            return self.cls(self, **kwargs)
        flat: dict[str, Any] = {}
        self.visit(lambda name, value: flat.update({name.rpartition(".")[2]: value}))
        arguments_in_bag = {name: flat[name] for name in arguments if name in flat}
        if _takes_any_keyword(self.cls):
            arguments_in_bag |= {name: flat[name] for name in ALLOWED_KWARGS & flat.keys() if flat[name] is not None}
        return self.cls(**arguments_in_bag | kwargs)


def constructor_parameters(cls: type) -> dict[str, inspect.Parameter]:
    """Returns the arguments of the constructor by name, without self, ``*args`` and ``**kwargs``."""
    if cls.__init__ is object.__init__:  # type: ignore[misc]  # inspected, not called
        return {}
    collecting = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    signature = inspect.signature(cls.__init__)  # type: ignore[misc]  # inspected, not called
    named = [parameter for parameter in signature.parameters.values() if parameter.kind not in collecting]
    return {parameter.name: parameter for parameter in named if parameter.name not in {"self", "cls"}}


def params(cls: type) -> InstantiableParams:
    """Returns the parameters of a class, made from the constructors of the class and its bases.

    Starts with what the nearest base declares in its own ``params()``. An argument that is declared there, at any
    depth, changes its default; any other one is declared with its default, or None.
    """
    declared = _of_nearest_base(cls)
    declared.cls = cls
    if "name" not in declared:
        declared.define("name", cls.__name__, "Name of this object.")
    owners = _owners_by_name(declared)
    for name, default in _all_arguments(cls).items():
        if name in owners:
            if default is not inspect.Parameter.empty:
                owners[name][name] = default
        else:
            declared.define(name, None if default is inspect.Parameter.empty else default, name)
    if "allowed_kwargs" not in declared:
        declared.define("allowed_kwargs", None, "Keywords of a layer that are passed on.")
    return declared


def with_params(cls: C) -> C:
    """Class decorator: gives a class the class method ``params()``, which returns `params` of it."""
    cls.params = classmethod(params)  # type: ignore[attr-defined]
    return cls


def _of_nearest_base(cls: type) -> InstantiableParams:
    for base in cls.__mro__[1:]:
        method = base.__dict__.get("params")
        if isinstance(method, classmethod):
            declared = method.__func__(base)
            if isinstance(declared, InstantiableParams):
                return declared
    return InstantiableParams(cls)


def _all_arguments(cls: type) -> Mapping[str, Any]:
    """Returns name -> default, of the bases first; the class itself overrides them."""
    defaults: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if "__init__" in base.__dict__ and base is not object:
            defaults |= {name: argument.default for name, argument in constructor_parameters(base).items()}
    defaults.pop("params", None)  # the bag itself is not in the bag
    return defaults


def _owners_by_name(bag: Params) -> dict[str, Params]:
    owners: dict[str, Params] = {}
    for name, value in bag.iter_params():
        if isinstance(value, Params):
            owners |= {inner: owner for inner, owner in _owners_by_name(value).items() if inner not in owners}
        else:
            owners[name] = bag
    return owners


def _takes_any_keyword(cls: type) -> bool:
    if cls.__init__ is object.__init__:  # type: ignore[misc]  # inspected, not called
        return False
    signature = inspect.signature(cls.__init__)  # type: ignore[misc]  # inspected, not called
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signature.parameters.values())
