"""Random samples for factorisation machines, as tests and demos use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from monolith.data.protos.tf_example_pb2 import Example

if TYPE_CHECKING:
    from collections.abc import Sequence


def slot_to_key(slot: int) -> str:
    """Returns the name of the feature of a slot.

    >>> slot_to_key(3)
    'feature_3'
    """
    return f"feature_{slot}"


def generate_ffm_example(
    vocab_sizes: Sequence[int], length: int = 5, *, seed: int | np.random.Generator | None = None
) -> bytes:
    """Returns a serialized ``tf.train.Example`` with a label of 0 or 1 and random ids in each slot.

    Slot i has 1 to `length` ids, drawn with repetition from ``[i * max_vocab, i * max_vocab + vocab_sizes[i])``, where
    max_vocab is the largest of the sizes: no id is in two slots.

    Args:
        vocab_sizes: Number of ids of each slot.
        length: The most ids of a slot.
        seed: A number, or a generator to draw many different examples from; None: another example at each call.

    >>> generate_ffm_example([10, 20], seed=3) == generate_ffm_example([10, 20], seed=3)
    True
    """
    if not vocab_sizes or min(vocab_sizes) < 1:
        raise ValueError(f"vocab_sizes must be numbers >= 1, got {list(vocab_sizes)}")
    if length < 1:
        raise ValueError(f"length must be >= 1, got {length}")
    random = np.random.default_rng(seed)
    example = Example()
    features = example.features.feature
    features["label"].int64_list.value.append(int(random.integers(2)))
    max_vocab = max(vocab_sizes)
    for slot, vocab_size in enumerate(vocab_sizes):
        num_ids = int(random.integers(1, length + 1))
        ids = random.integers(vocab_size, size=num_ids) + max_vocab * slot
        features[slot_to_key(slot)].int64_list.value.extend(ids.tolist())
    return example.SerializeToString(deterministic=True)
