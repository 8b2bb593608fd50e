"""Lets the tests of this folder import what they share by the name mypy knows: `data.framed_files`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
