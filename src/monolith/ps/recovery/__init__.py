"""The recovery record of a parameter server: what it writes beside training, and how it comes back from it.

Byte grammar and rules: docs/formats/recovery.md. Read `recorder` first.

    config         where, and how often
    entries        what one file of the record says of each owner
    record_file    one file: written whole, checked whole
    record_folder  the files of one server
    record_log     the same as the process that writes them knows them
    row_copy       what has changed in a store, copied almost without holding pushes
    increment      one file in the making
    lineage        what the rows of a store go back to
    recording      what a server tells whoever records it
    recorder       writes an increment every few seconds
    chain          which files, on which snapshot, bring rows back: decides, touches nothing
    recovering     brings a server back
"""

from __future__ import annotations

from monolith.ps.recovery.config import RecoveryConfig
from monolith.ps.recovery.recovered import Recovered

__all__ = ["Recovered", "RecoveryConfig"]
