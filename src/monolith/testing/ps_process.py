"""``python -P ps_process.py``: runs ``monolith ps``, and ends with the process that started it."""

from __future__ import annotations

import os
import sys
import threading

from monolith import cli


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass  # until the other end is closed, for whatever reason its process ended
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    sys.exit(cli.main(["ps", *sys.argv[1:]]))
