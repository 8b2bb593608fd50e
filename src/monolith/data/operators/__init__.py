"""Operators on batches: filters, labels, ids, sampling and negatives, vectorized over the rows of a batch.

Each is a small frozen config that takes a `Batch` and returns one, or None if no row is left; use it with a dataset's
``map`` or by hand. Read `conditions` first (what an operator is, filters and their combinations), then `add_label`
(labels of several tasks from actions). Random decisions are a function of the seed and of the row (`row_draws`), so
they are the same in every run. May import what `monolith.data` may.
"""

from typing import TYPE_CHECKING

from monolith._deprecated import former_names as _former_names
from monolith.data.operators.add_label import POSITIVE_LABEL, AddAction, AddLabel, TaskLabel, parse_task_labels
from monolith.data.operators.conditions import AllOf, AnyOf, Compose, Condition, Not, Operator
from monolith.data.operators.flows import SOURCE_KEY, ByFlow, FromSource, NameSources, split_flows
from monolith.data.operators.id_edits import (
    CrossIds,
    HashInts,
    HashTexts,
    MapIds,
    SwitchSlot,
    city_hash64,
    cross_rows,
    folded_product,
    id_mask,
    sequence_mask,
)
from monolith.data.operators.item_pool import Draws, ItemPool, PoolConfig
from monolith.data.operators.label_edits import (
    InstanceReweight,
    LabelNormalization,
    LabelUpperBound,
    MultiHeadLabel,
    RankLabel,
    ScatterLabel,
)
from monolith.data.operators.negatives import (
    LOG_Q,
    SAMPLED,
    SAMPLED_FREQUENCY,
    NegativeGen,
    NegativeSampling,
    NegativeWeights,
    PoolEntry,
    Positives,
)
from monolith.data.operators.pool_files import restore_pool, save_pool
from monolith.data.operators.row_draws import NumberRows
from monolith.data.operators.sampling import InShare, NegativeSample, SpecialStrategy
from monolith.data.operators.transforms import Counted, HasValidLabel, LabelAbove, LogicalOr, operators_of
from monolith.data.operators.unpack_floats import UnpackFloats
from monolith.data.operators.value_conditions import (
    HasAllIds,
    HasAllSlots,
    HasAnyId,
    Value,
    filter_by_fids,
    load_operand,
)

__all__ = [
    "AddAction",
    "AddLabel",
    "AllOf",
    "AnyOf",
    "ByFlow",
    "Compose",
    "Condition",
    "Counted",
    "CrossIds",
    "Draws",
    "FromSource",
    "HasAllIds",
    "HasAllSlots",
    "HasAnyId",
    "HasValidLabel",
    "HashInts",
    "HashTexts",
    "InShare",
    "InstanceReweight",
    "ItemPool",
    "LOG_Q",
    "LabelAbove",
    "LabelNormalization",
    "LabelUpperBound",
    "LogicalOr",
    "MapIds",
    "MultiHeadLabel",
    "NameSources",
    "NegativeGen",
    "NegativeSample",
    "NegativeSampling",
    "NegativeWeights",
    "Not",
    "NumberRows",
    "Operator",
    "POSITIVE_LABEL",
    "PoolConfig",
    "PoolEntry",
    "Positives",
    "RankLabel",
    "SAMPLED",
    "SAMPLED_FREQUENCY",
    "SOURCE_KEY",
    "ScatterLabel",
    "SpecialStrategy",
    "SwitchSlot",
    "TaskLabel",
    "UnpackFloats",
    "Value",
    "city_hash64",
    "cross_rows",
    "filter_by_fids",
    "folded_product",
    "id_mask",
    "load_operand",
    "operators_of",
    "parse_task_labels",
    "restore_pool",
    "save_pool",
    "sequence_mask",
    "split_flows",
]

if not TYPE_CHECKING:  # type checkers accept only the current names
    __getattr__ = _former_names(__name__, {"PoolLimits": "PoolConfig"})
