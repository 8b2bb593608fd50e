"""What a log has: its parts and its bases."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from monolith.cli._log.lines import time_text

if TYPE_CHECKING:
    from monolith.deltalog import DeltaLog


def listed(log: DeltaLog) -> dict[str, Any]:
    """Parts with what they have, and bases, the oldest first."""
    parts = []
    for part in log.parts():
        extent = log.extent(part)
        if extent is not None:
            parts.append(
                {
                    "part": part,
                    "first": extent.first,
                    "last": extent.next - 1,
                    "increments": extent.next - extent.first,
                    "generation": extent.generation,
                }
            )
    return {"place": log.place, "parts": parts, "bases": [asdict(base) for base in log.bases()]}


def shown_list(found: dict[str, Any]) -> str:
    """As lines."""
    form = "{:<24} {:>10} {:>10} {:>10}".format
    lines = [form("part", "first", "last", "generation")]
    lines += [form(each["part"], each["first"], each["last"], each["generation"]) for each in found["parts"]]
    if not found["parts"]:
        lines = ["no parts"]
    for base in found["bases"]:
        numbers = ", ".join(f"{part} {number}" for part, number in sorted(base["numbers"].items()))
        lines.append(f"base {base['name']} ({base['kind']}, {time_text(base['created_ms'])}): up to {numbers}")
    return "\n".join(lines)
