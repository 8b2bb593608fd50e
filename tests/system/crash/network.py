"""A network that can be cut: every process of a trial in a namespace of its own, all of them at one bridge."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_NEW_NETWORK = 0x40000000
"""CLONE_NEWNET of Linux."""
_PREFIX = "10.231.0"
_NOBODY = "02:00:00:00:00:fe"
"""A hardware address that no namespace has: packets to it are lost silently."""


class Network:
    """Places 0, 1, 2 ... with an address each, between which packets can be dropped silently.

    The constructor moves its process, which must have one thread, into a namespace of its own permanently; the
    namespaces end with the processes in them.

    Args:
        num_places: Number of places.

    Raises:
        PermissionError: the machine does not allow namespaces, or has no ``ip``.
    """

    def __init__(self, num_places: int) -> None:
        self._ip = shutil.which("ip", path=f"{os.defpath}:/usr/sbin:/sbin")
        if self._ip is None:
            raise PermissionError("network namespaces are configured by the command ip, which is not installed")
        self._hub = _new_namespace()
        self._run("link", "set", "lo", "up")
        self._run("link", "add", "hub", "type", "bridge")
        self._run("address", "add", f"{_PREFIX}.1/24", "dev", "hub")
        self._run("link", "set", "hub", "up")
        self._places = [self._add(place) for place in range(num_places)]

    def address(self, place: int) -> str:
        """Returns the address of a place."""
        return f"{_PREFIX}.{place + 2}"

    def enter(self, place: int) -> None:
        """Moves this process to a place."""
        _call("setns", self._places[place], _NEW_NETWORK)

    def cut(self, place: int, other: int | None = None) -> None:
        """Drops all packets of a place, or between two places; connections stay open at both ends."""
        if other is None:
            self._run("link", "set", f"hub{place}", "down")
            return
        for here, there in ((place, other), (other, place)):
            with self._inside(self._places[here]):
                nowhere = ("lladdr", _NOBODY, "dev", "out", "nud", "permanent")
                self._run("neighbour", "replace", self.address(there), *nowhere)

    def mend(self, place: int, other: int | None = None) -> None:
        """Undoes `cut`."""
        if other is None:
            self._run("link", "set", f"hub{place}", "up")
            return
        for here, there in ((place, other), (other, place)):
            with self._inside(self._places[here]), suppress(subprocess.CalledProcessError):
                self._run("neighbour", "delete", self.address(there), "dev", "out")

    def _add(self, place: int) -> int:
        made = _new_namespace()
        _call("setns", self._hub, _NEW_NETWORK)
        self._run("link", "add", f"hub{place}", "type", "veth", "peer", "name", "out", "netns", _path_of(made))
        self._run("link", "set", f"hub{place}", "master", "hub")
        self._run("link", "set", f"hub{place}", "up")
        with self._inside(made):
            self._run("link", "set", "lo", "up")
            self._run("address", "add", f"{self.address(place)}/24", "dev", "out")
            self._run("link", "set", "out", "up")
        return made

    @contextmanager
    def _inside(self, namespace: int) -> Iterator[None]:
        _call("setns", namespace, _NEW_NETWORK)
        try:
            yield
        finally:
            _call("setns", self._hub, _NEW_NETWORK)

    def _run(self, *arguments: str) -> None:
        command = [str(self._ip), *arguments]
        subprocess.run(command, check=True, capture_output=True, text=True)


def _new_namespace() -> int:
    """Moves into a new namespace; returns a descriptor that keeps it."""
    _call("unshare", _NEW_NETWORK)
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _path_of(namespace: int) -> str:
    return f"/proc/{os.getpid()}/fd/{namespace}"


def _call(name: str, *arguments: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise PermissionError(number, f"network namespaces: {name}: {os.strerror(number)}")
