"""A program that stands for a role of a job: it does what the file of its role says, and notes what happened to it.

    python stand_in.py ps|worker FOLDER ... --index I

FOLDER/<kind>-<index> has words, the first for the first start, and so on, the last for all others: "done" ends well,
"fail" with 3, "again" with 75, "die" by SIGKILL, "stay" until it is told to stop, "deaf" stays whatever it is told,
"parent" stays with a child, "mute" says nothing to its launcher. After "then-" it happens when all roles
have started, and those that stay are ready. Events go to FOLDER/events, a line each.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STAYING = ("stay", "deaf", "mute", "parent")
kind, folder, index = sys.argv[1], Path(sys.argv[2]), int(sys.argv[-1])


def note(text: str) -> None:
    with (folder / "events").open("a", encoding="utf-8") as file:
        file.write(f"{kind} {index} {text}\n")


def stay(exit_code: int) -> None:
    numbers = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    note(f"stays {os.getpid()}")
    number = signal.sigwait(numbers)
    note(f"stops {signal.Signals(number).name}")
    sys.exit(exit_code)


starts = folder / f"{kind}-{index}.starts"
number = len(starts.read_text(encoding="utf-8")) if starts.exists() else 0
starts.write_text("x" * (number + 1), encoding="utf-8")
words = (folder / f"{kind}-{index}").read_text(encoding="utf-8").split()
word = words[min(number, len(words) - 1)]
note(f"starts as {word}")
print(f"{word} says hello", flush=True)  # noqa: T201 - the output is what is merged
told = {"done": 10 * (index + 1), "total": 100, "fields": {"examples_per_second": 5.0, "loss": 0.5 + index}}
with os.fdopen(int(os.environ["MONOLITH_PROGRESS_FD"]), "w") as pipe:  # noqa: TID251 - a stranger's program
    if word != "mute":
        pipe.write(f"{json.dumps(told)}\nno message\n{json.dumps({'result': {'index': index}})}\n")
if word.startswith("then-"):
    roles = list(folder.glob("*-?"))
    staying = [path for path in roles if path.read_text(encoding="utf-8").split()[-1] in STAYING]
    expected = {" stays ": len(staying), " starts as ": len(roles)}
    while any((folder / "events").read_text(encoding="utf-8").count(text) < n for text, n in expected.items()):
        time.sleep(0.01)
match word.removeprefix("then-"):
    case "done":
        sys.exit(0)
    case "fail":
        sys.exit(3)
    case "again":
        sys.exit(75)
    case "die":
        os.kill(os.getpid(), signal.SIGKILL)
    case "stay" | "mute":
        stay(130 if kind == "worker" else 0)
    case "parent":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        note(f"child {child.pid}")
        stay(130)
    case "deaf":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        note(f"stays {os.getpid()}")
        signal.sigwait({signal.SIGUSR1})
