"""The arguments of ``monolith checkpoint``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``monolith checkpoint``."""
    parser.description = (
        "Inspects checkpoints. Nothing is unpickled, and only an export needs the model. A path is a model"
        " directory, whose newest checkpoint is used, or the prefix of a checkpoint: models/a/model.ckpt-60."
    )
    parser.epilog = "example: monolith checkpoint verify models/a"
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    for name, (text, example) in _ACTIONS.items():
        action = actions.add_parser(name, help=text, description=f"{text}.", epilog=f"example: {example}")
        action.add_argument("path", metavar="PATH", help="a model directory, or the prefix of a checkpoint")
        if name == "diff":
            action.add_argument("other", metavar="OTHER", help="what to compare it with")
        if name in {"export", "reshard"}:
            action.add_argument("target", metavar="TARGET", help="a folder or URL to write to")
        if name == "export":
            _add_serving(action.add_argument_group("a model to serve, see docs/how-to/export.md"))
        if name == "reshard":
            action.add_argument("--files", type=int, default=1, help="bucket files of each store (default 1)")
        action.add_argument("--json", action="store_true", help="print JSON instead of lines")


OF_SERVING = ("task", "shards", "version", "example", "shared_embedding")
"""Options that mean nothing without ``--serving``."""


def _add_serving(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--serving", action="store_true", help="write a version of a model that answers without its code"
    )
    group.add_argument("--task", metavar="TASK", help="what makes the model: module:Class, or a registered name")
    group.add_argument("--shards", type=int, metavar="N", help="servers that share the rows (default: in one piece)")
    group.add_argument(
        "--version", type=int, metavar="V", help="number of the version (default: Unix seconds, above all others)"
    )
    group.add_argument(
        "--example",
        metavar="JSON",
        help="columns of a request, such as '{\"user\": [7, 8]}', or a file with them (default: the first batch of the"
        " task's input to predict)",
    )
    group.add_argument(
        "--shared_embedding",
        action="store_true",
        help="name the rows of the checkpoint, which must stay, instead of writing them once more",
    )


_ACTIONS = {
    "list": ("show what a model directory has", "monolith checkpoint list models/a --json"),
    "show": ("show what a checkpoint holds", "monolith checkpoint show models/a/model.ckpt-60"),
    "verify": ("read every byte and check it", "monolith checkpoint verify models/a"),
    "diff": ("compare two checkpoints, row by row", "monolith checkpoint diff models/a models/b"),
    "export": (
        "write weights and tables as safetensors files, or with --serving a model that answers",
        "monolith checkpoint export models/a exported --serving --task my_task:Ranker",
    ),
    "reshard": ("copy with another number of table files", "monolith checkpoint reshard models/a models/b --files 8"),
}
