"""First weights and admissions by draws, against the same formulas in forty decimal digits.

Logarithms and exponentials are the core's own arithmetic, so the results are equal bit for bit, on every machine.
"""

from __future__ import annotations

import hashlib
from decimal import Decimal, localcontext

import numpy as np
import numpy.typing as npt
import pytest

from monolith.tables import HashTable, Segment, TableConfig, initializers
from monolith.tables.filters import ProbabilisticFilter
from monolith.tables.initializers import Initializer, RandomNormal, TruncatedNormal
from monolith.tables.schema import fnv1a_64
from monolith.testing.reference_format import GOLDEN_GAMMA, WORD_MASK, mix64

NAME = "t"
SEED = (5 + fnv1a_64(NAME)) % 2**64
ADMISSION_COUNTER = 0x61646D6974000000
BELOW_CUT = Decimal("0.022750131948179207200")
CUT = Decimal(2)

Coefficients = tuple[tuple[float, ...], tuple[float, ...]]

# Wichura's algorithm AS 241 (Applied Statistics 37, 1988): ascending powers of numerator and denominator.
CENTRAL: Coefficients = (
    (3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
     4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3),
    (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
     2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3),
)  # fmt: skip
TAIL: Coefficients = (
    (1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
     1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
     1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9),
)  # fmt: skip


def combine(first: int, second: int) -> int:
    return mix64((first + GOLDEN_GAMMA * (second + 1)) & WORD_MASK)


def bits(seed: int, counter: int) -> int:
    return mix64((seed + GOLDEN_GAMMA * (counter + 1)) & WORD_MASK)


def quotient(coefficients: Coefficients, x: Decimal) -> Decimal:
    above, below = (sum(Decimal(value) * x**power for power, value in enumerate(each)) for each in coefficients)
    return Decimal(above / below)


def quantile(probability: Decimal) -> Decimal:
    offset = probability - Decimal("0.5")
    if abs(offset) <= Decimal("0.425"):
        return offset * quotient(CENTRAL, Decimal("0.180625") - offset * offset)
    depth = (-min(probability, 1 - probability).ln()).sqrt()
    assert depth <= 5, "none of these draws is rarer than one of 10^11"
    return quotient(TAIL, depth - Decimal("1.6")).copy_sign(offset)


def exact_weight(initializer: RandomNormal | TruncatedNormal, id_: int, dim: int) -> np.float32:
    with localcontext(prec=40):
        cell = bits(combine(combine(SEED, id_), 0), dim) >> 12
        draw = (2 * cell + 1) * Decimal(2) ** -53
        if isinstance(initializer, TruncatedNormal):
            standard = min(max(quantile(BELOW_CUT + draw * (1 - 2 * BELOW_CUT)), -CUT), CUT)
        else:
            standard = quantile(draw)
        return np.float32(float(Decimal(initializer.mean) + Decimal(initializer.stddev) * standard))


def first_weights(initializer: Initializer, ids: npt.NDArray[np.int64], dim: int) -> npt.NDArray[np.float32]:
    table = HashTable(TableConfig([Segment(dim, initializer=initializer)], name=NAME, seed=5))
    table.reinitialize(ids, time=1)
    rows: npt.NDArray[np.float32] = table.lookup(ids)
    return rows


@pytest.mark.parametrize("initializer", [RandomNormal(mean=0.25, stddev=3.0), TruncatedNormal(mean=0.0, stddev=0.05)])
def test_normal_weights_are_those_of_forty_digits(initializer: RandomNormal | TruncatedNormal) -> None:
    ids = np.arange(1000, dtype=np.int64)
    expected = [[exact_weight(initializer, id_, dim) for dim in range(3)] for id_ in range(1000)]
    np.testing.assert_array_equal(first_weights(initializer, ids, 3), np.array(expected, np.float32))


FINGERPRINTS = {
    RandomNormal(): "846c97b812df6d0d2bc3b10ee7ddcbfe6655a531190029597db5e93c6722fb6a",
    RandomNormal(mean=1.0, stddev=0.01): "302343741d6d54f20ddc5a769f125148c0dadf58674f53ab758491c96647ca1e",
    TruncatedNormal(): "cdf3002062c452ea8217af0a1aa0a39635a426b7fc30a2530e70480d30ba7536",
    initializers.RandomUniform(-0.05, 0.05): "a411dc790286b81a30c90bc7fbb401666ff9ab058136d345fd29ca1b268cd9f5",
    initializers.GlorotUniform(scale=2.0): "80947da6ae2b961c8e454227fbb3766dabd85ad2dd8a74b8d9049778f7ce1d85",
}
"""Stored: machines of another architecture, with other compilers, must find the same ones. They change only with a
change of what is computed, and such a change says so (CONTRIBUTING.md, proof of value)."""


@pytest.mark.parametrize("initializer", FINGERPRINTS, ids=repr)
def test_first_weights_are_those_that_were_stored(initializer: Initializer) -> None:
    rows = first_weights(initializer, np.arange(-20_000, 20_000, dtype=np.int64), 17)
    assert hashlib.sha256(rows.astype("<f4").tobytes()).hexdigest() == FINGERPRINTS[initializer]


@pytest.mark.parametrize(("threshold", "count"), [(10, 1), (10, 4), (3, 7), (1000, 1)])
def test_equal_admissions_are_those_of_forty_digits(threshold: int, count: int) -> None:
    ids = np.repeat(np.arange(5000, dtype=np.int64), count)
    config = TableConfig(
        [Segment(1)], name=NAME, seed=5, min_count=threshold, admission=ProbabilisticFilter(equal_probability=True)
    )
    table = HashTable(config)
    table.apply_gradients(ids, np.ones((len(ids), 1), np.float32), step=9)
    with localcontext(prec=40):
        probability = 1 - Decimal("0.05") ** (Decimal(count) / threshold)
        words = (bits(combine(combine(SEED, id_), 9), ADMISSION_COUNTER) for id_ in range(5000))
        expected = [id_ for id_, word in enumerate(words) if (word >> 11) * Decimal(2) ** -53 < probability]
    assert sorted(table.ids().tolist()) == expected
