"""The form of all manifests: canonical JSON with a checksum.

The text has sorted keys, one space of indent, and a checksum over everything else. A reader serializes what it has read
again and compares byte by byte, so it rejects every flipped bit, edited number and unknown field.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from monolith import _core
from monolith.errors import DataLossError

if TYPE_CHECKING:
    from collections.abc import Mapping


def canonical(document: Mapping[str, Any]) -> bytes:
    """Returns the canonical text of a JSON document."""
    return json.dumps(document, sort_keys=True, indent=1, allow_nan=False).encode() + b"\n"


def seal(document: Mapping[str, Any]) -> bytes:
    """Returns the canonical text of a document with its checksum, which replaces the one that it may have."""
    body = _without_checksum(document)
    return canonical({**body, "crc32c": _core.crc32c(canonical(body))})


def unseal(text: bytes, *, subject: str, format_name: str, versions: range) -> dict[str, Any]:
    """Parses what `seal` returned; returns the document without its checksum.

    Args:
        text: The file.
        subject: Begins the message of errors, such as ``file 'x'``.
        format_name: Required value of the field ``format``: ``monolith-`` and what is described, such as ``snapshot``.
        versions: Allowed values of the field ``version``.

    Raises:
        DataLossError: the text is anything else; names subject, offset and reason.
    """
    document = parse_manifest(text, subject=subject, format_name=format_name)
    if document.get("version") not in versions:
        found = f"{format_name.removeprefix('monolith-')} version {document.get('version')!r}"
        raise DataLossError(f"{subject}: offset 0: {found}, this build reads versions up to {versions[-1]}")
    return require_seal(document, text, subject=subject)


def parse_manifest(text: bytes, *, subject: str, format_name: str) -> dict[str, Any]:
    """Parses a JSON document of a format; does not check its version and checksum.

    Raises:
        DataLossError: the text is anything else.
    """
    try:
        document = json.loads(text.decode("ascii"))
    except (RecursionError, ValueError) as error:
        offset = getattr(error, "pos", getattr(error, "start", 0))  # of JSONDecodeError or UnicodeDecodeError
        raise DataLossError(f"{subject}: offset {offset}: not JSON in ASCII: {error}") from error
    if not isinstance(document, dict) or document.get("format") != format_name:
        raise DataLossError(f"{subject}: offset 0: not a manifest of format {format_name!r}")
    return document


def require_seal(document: Mapping[str, Any], text: bytes, *, subject: str) -> dict[str, Any]:
    """Checks that a parsed text is the one that `seal` returned; returns the document without its checksum.

    Raises:
        DataLossError: it is not.
    """
    body = _without_checksum(document)
    try:
        expected, checksum = canonical(document), _core.crc32c(canonical(body))
    except (RecursionError, ValueError) as error:  # an infinite number, or a list in too many others
        raise DataLossError(f"{subject}: offset 0: not in canonical form: {error}") from error
    if document.get("crc32c") != checksum:
        raise DataLossError(f"{subject}: offset 0: checksum of the manifest does not match (it was changed)")
    if expected != text:
        pairs = enumerate(zip(expected, text, strict=False))
        offset = next((at for at, (one, other) in pairs if one != other), min(len(expected), len(text)))
        raise DataLossError(f"{subject}: offset {offset}: not in canonical form (it was changed)")
    return body


def _without_checksum(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != "crc32c"}
