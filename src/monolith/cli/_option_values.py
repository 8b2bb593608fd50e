"""Option values that several commands take: checked, read from files, or left at their defaults."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monolith.rpc import ClientCredentials

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping


def key_values(texts: Iterable[str], option: str) -> dict[str, str]:
    """Returns what an option was given as ``KEY=VALUE``, some times."""
    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ValueError(f"{option} takes KEY=VALUE, got '{text}'")
        settings[key] = value
    return settings


def require_writable(path: Path) -> None:
    """Refuses, before a minute is spent, a report that could not be written."""
    folder = path.resolve().parent
    if not folder.is_dir():
        raise ValueError(f"--out: expected a file in an existing folder, got {path}; make the folder first")
    if path.is_dir():
        raise ValueError(f"--out: expected a file, got the folder {path}; add a file name")
    if not os.access(folder, os.W_OK):
        raise ValueError(f"--out: {folder} cannot be written to; choose another place with --out")


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values that the command line names; the others have their defaults elsewhere."""
    return {name: value for name, value in values.items() if value is not None}


def credentials_of(args: argparse.Namespace, token: str | None, *, prefix: str = "") -> ClientCredentials:
    """Returns the credentials of a client: a token, and the TLS files that options of this prefix name."""
    names = ("tls_ca", "tls_certificate", "tls_key")
    return ClientCredentials(token=token, **{name: getattr(args, prefix + name) for name in names})


def secret_in(path: str | None) -> str | None:
    """Returns the secret in a file; None without a file."""
    return None if path is None else Path(path).read_text(encoding="utf-8").strip()
