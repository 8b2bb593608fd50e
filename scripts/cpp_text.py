"""Removes comments, strings and preprocessor lines from C++ sources, for scripts that search them as text."""

from __future__ import annotations

import re

_NOISE = re.compile(
    r"""//[^\n]* | /\*.*?\*/                                # comments
      | R"(?P<mark>[^()\s\\]*)\(.*?\)(?P=mark)"             # raw strings
      | "(?:\\.|[^"\\\n])*" | (?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'   # strings and characters
      | ^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*                      # preprocessor lines with their continuations
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)


def without_noise(text: str) -> str:
    """Replace comments, strings, characters and preprocessor lines by spaces; all other positions are unchanged."""
    return _NOISE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
