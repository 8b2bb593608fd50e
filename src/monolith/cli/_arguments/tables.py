"""The arguments of ``monolith tables``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``monolith tables``."""
    parser.description = "Removes rows of a model."
    parser.epilog = "example: monolith tables erase models/a --slot user --ids 1234 5678"
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    erase = actions.add_parser(
        "erase",
        help="remove the rows of some ids of a slot",
        description="Removes the rows of some ids of a slot, with optimizer state and admission counts: from a training"
        " that runs with this model directory, which then saves a checkpoint, or else from all checkpoints of the"
        " directory. docs/how-to/erase.md describes what remains elsewhere, and for how long.",
        epilog="example: monolith tables erase models/a --slot user --ids_file deleted_users.txt --dry_run",
    )
    erase.add_argument("path", metavar="PATH", help="a model directory, or the prefix of one checkpoint")
    erase.add_argument("--slot", required=True, help="name of the slot, as the model has it")
    erase.add_argument(
        "--ids", nargs="+", default=[], metavar="ID", help="ids of the slot: int64, or texts with --texts"
    )
    erase.add_argument("--ids_file", metavar="FILE", help="a file with an id on each line, in addition to --ids")
    erase.add_argument(
        "--texts",
        nargs="?",
        const="",
        metavar="COLUMN",
        help="the ids are texts of this column of the data (default: named as the slot), hashed as in training",
    )
    erase.add_argument("--dry_run", action="store_true", help="count the rows in the checkpoints, and change nothing")
    erase.add_argument("--offline", action="store_true", help="do not check for a running training")
    erase.add_argument("--json", action="store_true", help="print JSON instead of lines")
    erase.add_argument("--token_file", metavar="PATH", help="file with the secret of the training's controller")
    erase.add_argument("--tls_ca", metavar="PEM", help="authorities of the controller's certificate; turns TLS on")
    erase.add_argument("--tls_certificate", metavar="PEM", help="client certificate, if the controller requires one")
    erase.add_argument("--tls_key", metavar="PEM", help="private key of that certificate")
