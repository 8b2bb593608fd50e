"""``python -m monolith``: the command ``monolith``, for whom its script is not on the path."""

from __future__ import annotations

import sys

from monolith.cli import main

if __name__ == "__main__":
    sys.exit(main())
