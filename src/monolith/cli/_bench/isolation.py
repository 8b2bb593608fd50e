"""Calling a function in a fresh process, so that memory, caches of the allocator and crashes stay apart.

The child is `python -m monolith.cli._bench.isolation MODULE:FUNCTION ANSWER_FILE`, its arguments JSON on standard
input. It imports from the same folders as its parent. The answer goes to a file and its standard output to standard
error: libraries print as they like, and standard output belongs to the report.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from monolith.cli._bench.measurement import RowSkippedError
from monolith.cli._bench.setting import Setting

_STANDARD_ERROR = 2
"""The descriptor, whatever object stands for it in this process."""

INTERRUPTED = 130
"""Exit status of a process that Ctrl-C ended."""


class ChildFailedError(Exception):
    """The process ended without a result; its output is on standard error."""


def call(function: str, setting: Setting, **arguments: Any) -> Any:
    """Calls `module:function(setting, **arguments)` in a fresh process and returns its JSON-able result.

    Raises:
        RowSkippedError: The function raised it.
        ChildFailedError: The process died, or the function raised.
        KeyboardInterrupt: The child was interrupted.
    """
    with tempfile.TemporaryDirectory(prefix="monolith-bench-") as folder:
        answer_file = Path(folder) / "answer.json"
        # The interpreter that runs us, on a module of this package.
        child = subprocess.run(  # noqa: S603
            [sys.executable, "-m", "monolith.cli._bench.isolation", function, str(answer_file)],
            input=json.dumps({"path": sys.path, "setting": setting.to_json(), "arguments": arguments}),
            stdout=_STANDARD_ERROR,
            text=True,
            check=False,
        )
        if child.returncode == INTERRUPTED:
            raise KeyboardInterrupt
        if not answer_file.exists():
            raise ChildFailedError(_describe_death(function, child.returncode))
        answer = json.loads(answer_file.read_text())
    if "error" in answer:
        raise ChildFailedError(answer["error"])
    if "skipped" in answer:
        raise RowSkippedError(answer["skipped"])
    return answer["result"]


def _describe_death(function: str, status: int) -> str:
    if status < 0:
        killed = f"{function} was killed by signal {-status}"
        return f"{killed}, probably out of memory" if status == -9 else killed
    return f"{function} ended with status {status}"


def _answer(function: str, request: dict[str, Any]) -> dict[str, Any]:
    sys.path[:] = request["path"]
    module, name = function.split(":")
    target = getattr(importlib.import_module(module), name)
    try:
        return {"result": target(Setting.from_json(request["setting"]), **request["arguments"])}
    except RowSkippedError as skipped:
        return {"skipped": str(skipped)}


def _main(function: str, answer_file: str) -> int:
    try:
        answer = _answer(function, json.load(sys.stdin))
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        # One line for the report; the full traceback follows on standard error.
        Path(answer_file).write_text(json.dumps({"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}))
        raise
    Path(answer_file).write_text(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
