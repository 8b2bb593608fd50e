"""Tasks by name, so that a command line can name one."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from monolith.train.task import Task

if TYPE_CHECKING:
    from monolith.train.parameters.params import Params

M = TypeVar("M", bound="type[SingleTaskModelParams]")


class SingleTaskModelParams(ABC):
    """A named configuration: one method, which returns the parameters of a task."""

    @abstractmethod
    def task(self) -> Params:
        """Returns the parameters, ready to be instantiated."""


class TaskRegistry:
    """Model parameters by their full name and by a shorter one.

    Args:
        prefix: Prefix of modules whose tasks are also found without it.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._classes: dict[str, type[SingleTaskModelParams]] = {}

    def register(self, cls: M) -> M:
        """Class decorator."""
        if not issubclass(cls, SingleTaskModelParams):
            raise TypeError(f"register: expected a class under SingleTaskModelParams, got {cls!r}")
        keys = dict.fromkeys(self._keys_of(cls))
        for key in keys:
            if key in self._classes:
                raise ValueError(f"register: {key!r} is registered already, by {self._classes[key]!r}")
        self._classes |= dict.fromkeys(keys, cls)
        return cls

    def get_params(self, key: str) -> Params:
        """Returns the parameters of a registered name; imports its module if needed.

        Raises:
            ValueError: there is no dot in the name.
            LookupError: nothing of this name is registered.
        """
        if key not in self._classes:
            self._import_module_of(key)
        if key not in self._classes:
            close = difflib.get_close_matches(key, self._classes, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise LookupError(f"task {key!r} is not registered{hint}")
        return self._classes[key]().task()

    def names(self) -> list[str]:
        """Returns all names, sorted."""
        return sorted(self._classes)

    def _keys_of(self, cls: type) -> list[str]:
        full = f"{cls.__module__}.{cls.__name__}"
        shortcut = full.removeprefix(self._prefix).removeprefix(".").replace("params.", "")
        return [full, shortcut]

    def _import_module_of(self, key: str) -> None:
        module, dot, _ = key.rpartition(".")
        if not dot:
            raise ValueError(f"task {key!r}: expected module.Class, got no dot")
        for name in dict.fromkeys([module, f"{self._prefix}.{module}" if self._prefix else module]):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                    raise  # the module exists, but one of its imports is missing


task_registry = TaskRegistry()
"""The one that `register_single_task_model` fills."""


def register_single_task_model(cls: M) -> M:
    """Class decorator: makes a `SingleTaskModelParams` known by its name."""
    return task_registry.register(cls)


def find_task(text: str) -> Params:
    """Returns the parameters of the task of ``module:Class`` or of a registered name.

    Raises:
        ValueError: it is not of that form, or there is no such module or class; lists what exists.
    """
    module_name, colon, class_name = text.partition(":")
    if not colon:
        return _registered(text)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        here = [module_info.name for module_info in pkgutil.iter_modules([str(Path.cwd())])]
        close = difflib.get_close_matches(error.name, here, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(
            f"task {text!r}: there is no module {error.name!r} on Python's module search path{hint}"
        ) from None
    value = getattr(module, class_name, None)
    if isinstance(value, type) and issubclass(value, Task):
        return value.params()
    if isinstance(value, type) and issubclass(value, SingleTaskModelParams):
        return value().task()
    raise ValueError(f"task {text!r}: {_what_is_there(module, class_name, value)}")


def require_named_task(name: str | None, params: Params) -> None:
    """Refuses parameters of another task than the one that the option `task` names, if it names one."""
    if name is None:
        return
    named, cls = find_task(name).get("cls"), params.get("cls")
    if named is not cls:
        raise ValueError(
            f"option task={name!r} is refused: it must name the task whose parameters are given, got those of"
            f" {getattr(cls, '__name__', cls)}; leave it out, or give find_task({name!r})"
        )


def _registered(text: str) -> Params:
    try:
        return task_registry.get_params(text)
    except (LookupError, ValueError) as error:
        if "." not in text:
            raise ValueError(f"task {text!r}: expected module:Class, such as my_module:MyTask") from None
        module_name, _, class_name = text.rpartition(".")
        value = getattr(sys.modules.get(module_name), class_name, None)
        meant = isinstance(value, type) and issubclass(value, Task)
        hint = f"did you mean {module_name}:{class_name}?" if meant else "write module:Class, such as my_module:MyTask"
        raise ValueError(f"{error.args[0]}; {hint}") from error


def _what_is_there(module: Any, class_name: str, value: object) -> str:
    tasks = [name for name, value in vars(module).items() if isinstance(value, type) and issubclass(value, Task)]
    tasks = [name for name in tasks if name != "Task"]
    there = f"its tasks are {', '.join(tasks)}" if tasks else "it has no task"
    if value is None:
        return f"module {module.__name__!r} has no {class_name!r}; {there}"
    return f"{class_name!r} is no Task but {value!r}; {there}"
