"""A disk that may lose power: what of a record of changes is on it afterwards.

A file's bytes are sure to be there once the file was synced, a name once its folder was; until then each may be there
or not, in any combination. Real file systems lose less.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from file_faults.operations import Change

Choose = Callable[[], bool]
"""Whether a change that was not synced has reached the disk."""


@dataclass
class File:
    """Its bytes as programs see them, and those that are sure to be there."""

    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


@dataclass
class Folder:
    """Its names as programs see them, and those that are sure to be there."""

    names: dict[str, File | Folder] = field(default_factory=dict)
    synced: dict[str, File | Folder] = field(default_factory=dict)


class Disk:
    """Begins as a folder is now, all of it synced."""

    def __init__(self, folder: Path) -> None:
        self._path = str(folder)
        self._root = _read(folder)

    def apply(self, change: Change) -> None:
        """What a program did."""
        parent, name = self._place(change.path)
        if change.kind == "c":
            parent.names[name] = File()
        elif change.kind == "m":
            parent.names[name] = Folder()
        elif change.kind == "u":
            del parent.names[name]
        elif change.kind == "r":
            target, new_name = self._place(change.data.decode())
            target.names[new_name] = parent.names.pop(name)
        elif change.kind == "l":
            target, new_name = self._place(change.data.decode())
            target.names[new_name] = parent.names[name]
        else:
            self._change_file(parent.names[name] if name else parent, change)

    def _change_file(self, node: File | Folder, change: Change) -> None:
        if isinstance(node, Folder):
            assert change.kind == "s", change
            node.synced = dict(node.names)
        elif change.kind == "s":
            node.synced = bytes(node.data)
        elif change.kind == "t":
            del node.data[change.offset :]
        else:
            assert change.kind == "w", change
            node.data.extend(bytes(max(0, change.offset - len(node.data))))
            node.data[change.offset : change.offset + len(change.data)] = change.data

    def after_power_loss(self, choose: Choose) -> dict[str, bytes | None]:
        """Path -> bytes, None for a folder, of what is on the disk then."""
        return dict(_survivors(self._root, "", choose))

    def _place(self, path: str) -> tuple[Folder, str]:
        *folders, name = path.removeprefix(self._path).strip("/").split("/")
        node = self._root
        for each in folders:
            found = node.names[each]
            assert isinstance(found, Folder)
            node = found
        return node, name


def fates(seed: int) -> list[Choose]:
    """Everything that was not synced is lost, nothing is, and some in between."""
    dice = [random.Random(seed * 10 + number) for number in range(3)]  # noqa: S311 - which combinations are tried
    return [lambda: False, lambda: True, *((lambda each=each: each.random() < 0.5) for each in dice)]


def write_tree(tree: dict[str, bytes | None], folder: Path) -> None:
    """Makes a folder of it."""
    folder.mkdir()
    for name, data in tree.items():
        if data is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(data)


def _survivors(folder: Folder, prefix: str, choose: Choose) -> Iterator[tuple[str, bytes | None]]:
    for name in sorted({*folder.names, *folder.synced}):
        seen, sure = folder.names.get(name), folder.synced.get(name)
        node = seen if seen is sure or choose() else sure
        if isinstance(node, Folder):
            yield f"{prefix}{name}", None
            yield from _survivors(node, f"{prefix}{name}/", choose)
        elif node is not None:
            yield f"{prefix}{name}", bytes(node.data) if node.data == node.synced or choose() else node.synced


def _read(folder: Path) -> Folder:
    names: dict[str, File | Folder] = {}
    for path in folder.iterdir():
        if path.is_dir():
            names[path.name] = _read(path)
        else:
            data = path.read_bytes()
            names[path.name] = File(bytearray(data), data)
    return Folder(names, dict(names))
