"""What stands for the command of a role on Ray: does what the file of its role says, and notes what happened to it.

FOLDER/<kind>-<index> has words, the first for the first life, and so on, the last for all others: "done" ends well,
"fail" with 3, "raise" by an error, "again" with 75, "die" by SIGKILL, "stay" until it is told to stop, "deaf" whatever
it is told, "peers" when all roles are registered. Events go to FOLDER/events, a line each.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from monolith.cluster.discovery import RayServiceDiscovery
from monolith.launch.progress_pipe import ProgressPipe


def main(arguments: list[str]) -> int:
    kind, folder = arguments[0], Path(arguments[1])
    said = dict(zip(arguments[2::2], arguments[3::2], strict=True))
    role = StandIn(kind, int(said["--index"]), folder)
    role.note(f"listens at {said['--host']}, knows {len(Path(said['--token_file']).read_text(encoding='ascii'))}")
    with ProgressPipe.from_environment() or ProgressPipe(os.dup(2)) as pipe:
        pipe.send({"done": 10 * (role.index + 1), "total": 100, "fields": {"loss": 0.5}})
        pipe.send_result({"index": role.index})
    numbers = int(said["--num_ps"]), int(said["--num_workers"])
    discovery = RayServiceDiscovery(said["--uuid"])  # not closed: others may still look for this one
    discovery.register(kind, role.index, f"{said['--host']}:{1000 + role.index}")
    return role.do(role.word(), lambda: tuple(len(discovery.query(each)) for each in ("ps", "worker")) == numbers)


class StandIn:
    def __init__(self, kind: str, index: int, folder: Path) -> None:
        self.kind, self.index, self.folder = kind, index, folder

    def note(self, text: str) -> None:
        with (self.folder / "events").open("a", encoding="utf-8") as file:
            file.write(f"{self.kind} {self.index} {text}\n")

    def word(self) -> str:
        starts = self.folder / f"{self.kind}-{self.index}.starts"
        number = len(starts.read_text(encoding="utf-8")) if starts.exists() else 0
        starts.write_text("x" * (number + 1), encoding="utf-8")
        words = (self.folder / f"{self.kind}-{self.index}").read_text(encoding="utf-8").split()
        word = words[min(number, len(words) - 1)]
        facts = {"pid": os.getpid(), "word": word, "variable": os.environ.get("GIVEN"), "folder": str(Path.cwd())}  # noqa: TID251 - a stranger's program
        self.note(f"starts {json.dumps(facts)}")
        print(f"{word} says hello", flush=True)  # noqa: T201 - what Ray shows
        return word

    def do(self, word: str, peers_are_there: Callable[[], bool]) -> int:
        match word:
            case "fail":
                return 3
            case "again":
                return 75
            case "raise":
                raise RuntimeError("of the task")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stay" | "deaf":
                return self.stay(is_deaf=word == "deaf")
            case "peers":
                while not peers_are_there():
                    time.sleep(0.01)
        self.note("ends")
        return 0

    def stay(self, *, is_deaf: bool) -> int:
        told = threading.Event()

        def stop(number: int, _: object) -> None:
            self.note(f"is told {signal.Signals(number).name}")
            if not is_deaf:
                told.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        self.note(f"stays {os.getpid()}")
        while not told.wait(0.05):
            pass
        return 130 if self.kind == "worker" else 0
