"""Which message a record holds."""

from __future__ import annotations

import enum
from typing import Self


class SampleFormat(enum.Enum):
    """The message of a record; the first four numbers are those of ByteDance Monolith's ``PbType``."""

    INSTANCE = 1
    """One sample, its v1 ids in one flat list (``parser.proto.Instance``)."""
    EXAMPLE_BATCH = 2
    """Many samples, column by column (``monolith.io.proto.ExampleBatch``)."""
    EXAMPLE = 3
    """One sample of named features (``monolith.io.proto.Example``)."""
    PLAINTEXT = 4
    """Bytes that are left as they are."""
    TF_EXAMPLE = 5
    """``tf.train.Example``."""

    @classmethod
    def of(cls, name: str | Self) -> Self:
        """Returns the format of this name, in any case and with or without the underscore, as flags give it.

        >>> SampleFormat.of("ExampleBatch")
        <SampleFormat.EXAMPLE_BATCH: 2>
        """
        if isinstance(name, cls):
            return name
        wanted = str(name).replace("_", "").lower()
        for member in cls:
            if member.name.replace("_", "").lower() == wanted:
                return member
        raise ValueError(f"sample format must be one of {', '.join(m.name for m in cls)}, got {name!r}")
