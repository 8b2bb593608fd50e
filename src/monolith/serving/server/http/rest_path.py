"""Paths of the REST interface.

They are ``/v1/models/<name>[/versions/<n>|/labels/<label>][/metadata|:predict]``, and for commands
``/v1/promotion[/<name>[:<verb>]]``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

from monolith.serving.server.commands import VERBS
from monolith.serving.server.http.error import HttpError
from monolith.serving.server.request_core import Target

__all__ = ["Asked", "parse_path"]

Action: TypeAlias = Literal["status", "metadata", "predict", "promotion", "healthz", "readyz"]

_PATH = re.compile(
    r"/v1/models/(?P<name>[^/:]{1,256})"
    r"(?:/versions/(?P<version>[0-9]{1,19})|/labels/(?P<label>[^/:]{1,256}))?"
    r"(?P<action>/metadata|:predict|:classify|:regress)?"
)
_COMMAND = re.compile(r"/v1/promotion(?:/(?P<name>[^/:]{1,256})(?::(?P<verb>[a-z]{1,32}))?)?")
_KEPT_PATHS = 256
"""Number of cached paths, of up to 64 KiB each, the limit of a head."""
_FORM = "/v1/models/<name>[/versions/<number>|/labels/<label>][/metadata|:predict]"


class Asked(NamedTuple):
    """Parsed path."""

    action: Action
    target: Target
    method: str
    """Expected HTTP method."""
    verb: str | None = None
    """Verb of a command; None: a status query."""


@lru_cache(maxsize=_KEPT_PATHS)
def parse_path(path: str) -> Asked:
    """Parses a path; recent paths are cached.

    Raises:
        HttpError: the path does not exist.
    """
    if path in ("/healthz", "/readyz"):
        return Asked("healthz" if path == "/healthz" else "readyz", Target(""), "GET")
    command = _COMMAND.fullmatch(path)
    if command is not None:
        return _command(command["name"], command["verb"])
    found = _PATH.fullmatch(path)
    if found is None:
        raise HttpError(404, f"there is nothing at this path; models are at {_FORM}")
    if found["action"] in (":classify", ":regress"):
        raise HttpError(501, f"{found['action'][1:]} is not answered here; use :predict")
    version = None if found["version"] is None else int(found["version"])
    target = Target(found["name"], version, found["label"])
    if found["action"] == ":predict":
        return Asked("predict", target, "POST")
    return Asked("metadata" if found["action"] else "status", target, "GET")


def _command(name: str | None, verb: str | None) -> Asked:
    if verb is not None and verb not in VERBS:
        raise HttpError(404, f"there is no command {verb!r}; commands are: {', '.join(VERBS)}")
    return Asked("promotion", Target(name or ""), "GET" if verb is None else "POST", verb)
