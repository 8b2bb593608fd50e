"""An online tree whose users change their taste: prints what both readers, followers or servers, saw of it, as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from system.crash.online_live import LiveScenario, run_live_tree


def main(folder: str, flip: str, readers: str) -> None:
    scenario = LiveScenario(
        seed=4,
        events_per_second=1500.0,
        num_chunks=24,
        chunk_events=50,
        window_seconds=0.1,
        flip=int(flip),
        serve=readers == "server",
    )
    tree = run_live_tree(scenario, Path(folder))
    delays = {name: tree.delays(clicked=clicked, chunks=range(24)) for name, clicked in (("yes", True), ("no", False))}
    seen = {role: {name: found.get(name) for name in ("tastes", "staleness")} for role, found in tree.found.items()}
    sys.stdout.write(json.dumps({"delays": delays, "seen": seen, "events": tree.traffic.num_events}))


if __name__ == "__main__":
    main(*sys.argv[1:])
