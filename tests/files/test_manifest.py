"""The form that all manifests have: what was sealed is read back, and no other text is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from monolith.errors import DataLossError
from monolith.files import canonical, seal, unseal

DOCUMENT = {"format": "monolith-thing", "version": 2, "names": ["é", "b"], "ratio": 0.5, "none": None}


def unsealed(text: bytes) -> dict[str, Any]:
    return unseal(text, subject="file 'x'", format_name="monolith-thing", versions=range(1, 3))


def test_what_was_sealed_is_read_back() -> None:
    text = seal(DOCUMENT)
    assert unsealed(text) == DOCUMENT
    assert text == canonical(json.loads(text))
    assert text.isascii()
    assert text.endswith(b"\n}\n")


def test_sealing_replaces_an_older_checksum() -> None:
    assert seal({**json.loads(seal(DOCUMENT)), "ratio": 0.25}) == seal({**DOCUMENT, "ratio": 0.25})


def test_every_flipped_bit_and_every_other_length_is_refused() -> None:
    text = seal(DOCUMENT)
    for bit in range(8 * len(text)):
        changed = bytearray(text)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DataLossError, match=r"^file 'x': offset \d+: "):
            unsealed(bytes(changed))
    for other in (*(text[:length] for length in range(len(text))), text + b"\n"):
        with pytest.raises(DataLossError, match=r"^file 'x': offset \d+: "):
            unsealed(other)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"[]\n", "offset 0: not a manifest of format 'monolith-thing'"),
        (seal({**DOCUMENT, "format": "monolith-other"}), "offset 0: not a manifest of format 'monolith-thing'"),
        (seal({**DOCUMENT, "version": 3}), "thing version 3, this build reads versions up to 2"),
        (seal({**DOCUMENT, "version": None}), "thing version None, this build reads versions up to 2"),
        (canonical(DOCUMENT), "checksum of the manifest does not match"),
        (canonical({**json.loads(seal(DOCUMENT)), "more": 1}), "checksum of the manifest does not match"),
        (json.dumps(json.loads(seal(DOCUMENT))).encode(), "offset 1: not in canonical form"),
        (seal(DOCUMENT)[:-1], f"offset {len(seal(DOCUMENT)) - 1}: not in canonical form"),
        (seal(DOCUMENT).replace(b"0.5", b"1e999"), "offset 0: not in canonical form: Out of range"),
        (seal(DOCUMENT).replace(b"0.5", b"NaN"), "offset 0: not in canonical form: Out of range"),
        (seal(DOCUMENT).replace(b"0.5", b"[" * 100_000), "not JSON in ASCII"),
        (seal(DOCUMENT).replace(b"0.5", b"[" * 700 + b"]" * 700), "offset 0: "),
        (seal(DOCUMENT).replace(b"0.5", "é".encode()), "not JSON in ASCII"),
    ],
)
def test_any_other_text_is_refused_with_its_reason(text: bytes, told: str) -> None:
    with pytest.raises(DataLossError) as caught:
        unsealed(text)
    assert str(caught.value).startswith("file 'x': offset ")
    assert told in str(caught.value)
