"""Which slots share a table, what tables and slots are called, and where learning rates come from."""

from __future__ import annotations

from typing import Any

import pytest

import monolith as ml
from monolith.errors import InvalidArgumentError
from monolith.nn.combiners import FirstN, ReduceSum
from monolith.nn.embeddings.merge import MergedTable, merge_slots, original_table_names, place_slots
from monolith.nn.slot import LearningRate, Slice, Slot
from monolith.tables import Segment, TableConfig

ADAGRAD = ml.row_optimizers.Adagrad(learning_rate=0.05)
SGD = ml.row_optimizers.Sgd(learning_rate=0.1)


def merge(learning_rate: LearningRate | None = None, **slots: Slot) -> list[MergedTable]:
    return merge_slots(slots, optimizer=ADAGRAD, learning_rate=learning_rate)


def members(tables: list[MergedTable]) -> dict[str, list[str]]:
    return {table.name: list(table.slots) for table in tables}


def test_slots_that_learn_alike_share_a_table() -> None:
    tables = merge(user=Slot(16), tag=Slot(4), item=Slot(16), city=Slot(4))
    assert members(tables) == {"16-adagrad": ["user", "item"], "4-adagrad": ["tag", "city"]}


def test_combiner_admission_and_expiry_do_not_part_slots() -> None:
    (table,) = merge(
        a=Slot(4, combiner="mean", min_count=2, number=1), b=Slot(4, combiner=FirstN(3), expire_days=7, number=2)
    )
    config = table.config(TableConfig([Segment(1)], seed=5))
    assert config.slot_min_counts == {1: 2, 2: 0}
    assert config.slot_expire_days == {1: 36500, 2: 7}
    assert (config.name, config.seed, config.dim) == ("4-adagrad", 5, 4)


@pytest.mark.parametrize(
    "other",
    [
        Slot(5),
        Slot(4, initializer=ml.initializers.Zeros()),
        Slot(4, compressor=ml.compressors.Fp32()),
        Slot(4, optimizer=SGD),
        Slot(4, optimizer=ml.row_optimizers.Adagrad(learning_rate=0.06)),
        Slot(4, learning_rate=0.01),
        Slot(4, learning_rate=lambda step: 0.05),
        Slot(4, id_layout="any"),
        Slot(slices=[Slice.bias(), Slice(3)]),
    ],
    ids=["dim", "initializer", "compressor", "optimizer", "rate of optimizer", "rate", "schedule", "any id", "slices"],
)
def test_what_a_row_is_or_how_it_learns_parts_slots(other: Slot) -> None:
    tables = merge(one=Slot(4), other=other)
    assert [list(table.slots) for table in tables] == [["one"], ["other"]]
    assert len({table.name for table in tables}) == 2


def test_equal_schedules_merge_and_functions_merge_with_themselves_only() -> None:
    def warm_up(step: int) -> float:
        return 0.01 * step

    assert len(merge(a=Slot(4, learning_rate=warm_up), b=Slot(4, learning_rate=warm_up))) == 1
    assert len(merge(a=Slot(4, learning_rate=0.5), b=Slot(4, learning_rate=0.5))) == 1
    assert len(merge(a=Slot(4, learning_rate=lambda step: 1.0), b=Slot(4, learning_rate=lambda step: 1.0))) == 2


def test_neighbouring_slices_that_learn_alike_are_one_segment() -> None:
    tables = merge(whole=Slot(9), parts=Slot(slices=[Slice(8), Slice(1)]))
    assert members(tables) == {"9-adagrad": ["whole", "parts"]}
    (table,) = merge(a=Slot(slices=[Slice(2), Slice(1, optimizer=SGD), Slice(3)]))
    assert table.name == "2-adagrad_1-sgd_3-adagrad", "only neighbours"


@pytest.mark.parametrize(
    "optimizer",
    [
        ml.row_optimizers.GroupAdagrad(),
        ml.row_optimizers.GroupFtrl(),
        ml.row_optimizers.Adagrad(hessian_compression_times=2),
    ],
    ids=lambda optimizer: type(optimizer).__name__,
)
def test_slices_of_rules_that_couple_weights_stay_apart(optimizer: ml.row_optimizers.RowOptimizer) -> None:
    (table,) = merge(a=Slot(slices=[Slice(2), Slice(2)], optimizer=optimizer))
    assert [each.segment.dim for each in table.segments] == [2, 2]


def test_a_learning_rate_goes_with_the_optimizer_of_its_level() -> None:
    own = ml.row_optimizers.Ftrl(learning_rate=0.3)
    slots: dict[str, Slot] = {
        "module": Slot(1),
        "slot": Slot(1, learning_rate=0.2),
        "slice": Slot(slices=[Slice(1, learning_rate=0.1)], learning_rate=0.2),
        "optimizer of slot": Slot(1, optimizer=SGD),
        "optimizer of slice": Slot(slices=[Slice(1, optimizer=own)], learning_rate=0.2),
        "both of slice": Slot(slices=[Slice(1, optimizer=own, learning_rate=0.1)]),
    }
    tables = merge_slots(slots, optimizer=ADAGRAD, learning_rate=0.5)
    rates = {next(iter(table.slots)): table.segments[0].rate for table in tables}
    expected: dict[str, Any] = {
        "module": 0.5,
        "slot": 0.2,
        "slice": 0.1,
        "optimizer of slot": None,
        "optimizer of slice": None,
        "both of slice": 0.1,
    }
    assert rates == expected


def test_names_stay_when_slots_are_added_or_rates_change() -> None:
    before = merge(user=Slot(16), item=Slot(16))
    after = merge(user=Slot(16), item=Slot(16), city=Slot(16), late=Slot(16, learning_rate=0.1))
    slower = merge(learning_rate=0.001, user=Slot(16), item=Slot(16))
    assert members(before) == {"16-adagrad": ["user", "item"]}
    assert members(after) == {"16-adagrad": ["user", "item", "city"], "16-adagrad@late": ["late"]}
    assert members(slower) == members(before)
    assert before[0].numbers.items() <= after[0].numbers.items()


@pytest.mark.parametrize("leaving", ["user", "item"])
def test_a_slot_with_a_rule_of_its_own_does_not_take_the_name_away(leaving: str) -> None:
    slots = {"user": Slot(16), "item": Slot(16)}
    slots[leaving] = Slot(16, learning_rate=0.1)
    (staying,) = slots.keys() - {leaving}
    assert members(merge_slots(slots, optimizer=ADAGRAD, learning_rate=None)) == {
        "16-adagrad": [staying],
        f"16-adagrad@{leaving}": [leaving],
    }


def test_a_slot_with_any_id_has_a_table_of_its_own_with_its_own_rules() -> None:
    tables = merge(a=Slot(4, id_layout="any", min_count=3, expire_days=2), b=Slot(4, id_layout="any"))
    assert members(tables) == {"4-adagrad@a": ["a"], "4-adagrad@b": ["b"]}
    config = tables[0].config(TableConfig([Segment(1)]))
    assert (config.min_count, config.expire_days) == (3, 2)
    assert config.slot_min_counts == config.slot_expire_days == {}
    assert tables[0].numbers == {}


def test_numbers_derive_from_names_and_all_clashing_given_numbers_are_rejected_together() -> None:
    (table,) = merge(user=Slot(4), item=Slot(4, number=7))
    assert table.numbers == {"user": 18674, "item": 7}, "fnv1a of the name; rows are found by it, so it never changes"
    with pytest.raises(
        ValueError,
        match=r"'user' and 'a' \(18674\); 'b' and 'c' \(3\); give them numbers .* 'a' number=0, 'c' number=1,",
    ):
        merge(
            user=Slot(4, id_layout="v2"), a=Slot(4, number=18674), b=Slot(4, number=3), c=Slot(4, number=3), d=Slot(4)
        )


def test_of_names_with_the_same_number_the_later_one_takes_the_next_free_one() -> None:
    """``ad_4`` and ``fc_user_259`` both have 28227."""
    for names in (("ad_4", "fc_user_259"), ("fc_user_259", "ad_4")):
        (table,) = merge_slots({name: Slot(4) for name in names}, optimizer=ADAGRAD, learning_rate=None)
        assert table.numbers == {"ad_4": 28227, "fc_user_259": 28228}, "by name, not by place"
    (table,) = merge(ad_4=Slot(4), fc_user_259=Slot(4), given=Slot(4, number=28227), next=Slot(4, number=28229))
    assert table.numbers == {"ad_4": 28228, "fc_user_259": 28230, "given": 28227, "next": 28229}
    (table,) = merge(ad_4=Slot(4), fc_user_259=Slot(4, id_layout="v2"))
    assert table.numbers == {"ad_4": 28228, "fc_user_259": 28227}, "what ids carry already cannot change"


def test_the_next_free_number_of_the_highest_is_the_lowest() -> None:
    (table,) = merge_slots(
        {"ad_4": Slot(4)} | {f"s{n}": Slot(4, number=n, id_layout="raw") for n in range(28227, 32768)},
        optimizer=ADAGRAD,
        learning_rate=None,
    )
    assert table.numbers["ad_4"] == 0


def test_one_table_takes_512_slots_of_any_int64_and_suggests_raw_ids_for_more() -> None:
    few = {f"s{n}": Slot(4, number=n) for n in range(512)}
    (table,) = merge_slots(few, optimizer=ADAGRAD, learning_rate=None)
    assert table.wide_slots == list(range(512))
    with pytest.raises(InvalidArgumentError, match=r"at most 512 slots .* got 513; give id_layout='raw' to those"):
        merge_slots(few | {"more": Slot(4)}, optimizer=ADAGRAD, learning_rate=None)
    (table,) = merge_slots(few | {"more": Slot(4, id_layout="raw")}, optimizer=ADAGRAD, learning_rate=None)
    assert len(table.slots) == 513


def test_any_hundreds_of_names_get_numbers_of_their_own() -> None:
    for model in range(20):
        (table,) = merge_slots(
            {f"model{model}_feature{n}": Slot(4) for n in range(200)}, optimizer=ADAGRAD, learning_rate=None
        )
        assert len(set(table.numbers.values())) == 200


def test_equal_numbers_in_different_tables_are_fine() -> None:
    tables = merge(a=Slot(4, number=3), b=Slot(5, number=3))
    assert [table.numbers for table in tables] == [{"a": 3}, {"b": 3}]


def test_a_sharing_slot_takes_everything_but_the_combiner() -> None:
    slots = {
        "item": Slot(slices=[Slice.bias(), Slice(3)], number=5),
        "history": Slot(shares="item", combiner=FirstN(2)),
    }
    tables = merge_slots(slots, optimizer=ADAGRAD, learning_rate=None)
    placed = place_slots(slots, tables)
    assert len(tables) == 1
    assert placed["history"].table == placed["item"].table
    assert placed["history"].number == placed["item"].number == 5
    assert placed["item"].combiner == ReduceSum()
    assert (placed["item"].column, placed["item"].width) == (0, 4)
    assert (placed["history"].column, placed["history"].width) == (4, 8)
    assert placed["history"].slot.slice_dims == [1, 3]


def test_sharing_nothing_or_a_sharing_slot_is_refused() -> None:
    with pytest.raises(ValueError, match=r"slot 'history': it shares 'itm', which is no slot; the slots are"):
        place({"item": Slot(4), "history": Slot(shares="itm")})
    with pytest.raises(ValueError, match=r"slot 'b': it shares 'a', which itself shares 'item'; share that one"):
        place({"item": Slot(4), "a": Slot(shares="item"), "b": Slot(shares="a")})


def place(slots: dict[str, Slot]) -> None:
    place_slots(slots, merge_slots(slots, optimizer=ADAGRAD, learning_rate=None))


def test_upstream_table_names_are_reproduced_for_reading_its_checkpoints() -> None:
    assert original_table_names(["slot0", "slot1"]) == ["e21904dd414d1780e5fc904866dc69c2"]
    renamed = original_table_names(["fc_slot_1", "b"])
    assert renamed == original_table_names(["b", "fc_slot_1"])
    assert renamed[1:] == original_table_names(["slot_1", "b"])
