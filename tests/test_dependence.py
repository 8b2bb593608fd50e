"""What depends on what: by the autograd graph, by recorded calls, and through both."""

from __future__ import annotations

import gc
import re
import weakref

import pytest
import torch

from monolith import optim
from monolith.dependence import Op, ReadsFrom, RecordedCall, check_ops_dependence, record_source
from monolith.errors import InvalidArgumentError


def call(name: str, *reads_from: Op) -> RecordedCall[[], str]:
    return RecordedCall(lambda: name, name=name, reads_from=reads_from)


def depends(first: Op | list[Op], second: Op | list[Op]) -> bool:
    try:
        check_ops_dependence(first, second)
    except InvalidArgumentError:
        return True
    return False


def test_the_published_case() -> None:
    v = torch.zeros(1)
    add = RecordedCall(lambda: v.add_(1), name="add")
    t1, t2 = call("t1", add), call("t2", add)
    text = "Checking ops dependence, the ops [t1] depend on ops [add], which may cause ops [add] to be run twice."
    with pytest.raises(InvalidArgumentError, match=f"^{re.escape(text)}$"):
        check_ops_dependence(t1, add)
    check_ops_dependence(t1, t2)
    assert v.item() == 0, "the check runs nothing"


def test_it_is_public_alongside_the_optimizers() -> None:
    assert optim.check_ops_dependence is check_ops_dependence


def test_calls_are_followed_through_others_and_in_one_direction() -> None:
    read = call("read")
    parse = call("parse", read)
    train = call("train", parse)
    assert depends(train, read)
    assert not depends(read, train)
    assert depends(train, train)


def test_calls_that_read_from_each_other_end() -> None:
    first = call("first")
    second = call("second", first)
    first.reads_from = (second,)
    assert depends(first, second)
    assert depends(second, first)
    assert not depends(first, call("third"))


def test_lists_name_all_of_the_first_and_what_was_found_of_the_second() -> None:
    a, b = call("a"), call("b")
    c, d = call("c", a), call("d", b)
    with pytest.raises(InvalidArgumentError, match=r"the ops \[c, d\] depend on ops \[a, d\], .* ops \[a, d\] to be"):
        check_ops_dependence([c, d], [a, call("e"), d])
    check_ops_dependence([], [a])
    check_ops_dependence([c], [])


def test_tensors_are_followed_through_the_autograd_graph() -> None:
    x = torch.ones(2, requires_grad=True)
    w = torch.ones(2, requires_grad=True)
    hidden = x * 2
    y = (hidden + 1).sum()
    other = w * 3
    assert depends(y, x)
    assert depends(y, hidden)
    assert depends(y, [other, x])
    assert not depends(y, w)
    assert not depends(y, other)
    assert not depends(hidden, y)
    assert hidden.grad_fn is not None
    assert depends(y, hidden.grad_fn)
    assert y.grad_fn is not None
    assert depends(y.grad_fn, x)


def test_functions_of_ones_own_are_followed() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(_: object, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(_: object, *grads: torch.Tensor) -> torch.Tensor:
            return grads[0] * 2

    x = torch.ones(2, requires_grad=True)
    y = Double.apply(x)  # type: ignore[no-untyped-call]
    assert depends(y + 1, y)
    assert depends(y + 1, x)


def test_a_deep_graph_is_walked_without_recursion() -> None:
    x = torch.ones(1, requires_grad=True)
    y = x
    for _ in range(20_000):
        y = y + 1
    assert depends(y, x)
    assert not depends(y, torch.ones(1, requires_grad=True))


def test_the_message_names_a_tensor_by_its_operation_and_shape() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(
        InvalidArgumentError, match=r"ops \[SumBackward0 of shape \(\)\] depend on ops \[leaf of shape \(2, 3\)\]"
    ):
        check_ops_dependence(x.sum(), x)


def test_a_queue_joins_both_sides() -> None:
    # A thread computes from `x`, the queue hands a bare copy over, and the step computes on.
    x = torch.ones(2, requires_grad=True)
    made = x * 2
    enqueue = call("enqueue", made)
    taken = made.detach().clone().requires_grad_()
    loss = (taken * 3).sum()
    assert not depends(loss, x)
    record_source(taken, enqueue)
    assert depends(loss, enqueue)
    assert depends(loss, x)
    push = call("push", loss)
    assert depends(push, x)
    assert not depends(enqueue, push)


def test_a_tensor_may_come_from_several_calls_and_is_not_kept_alive() -> None:
    first, second = call("first"), call("second")
    tensor = torch.ones(1)
    record_source(tensor, first)
    record_source(tensor, second)
    assert depends(tensor, first)
    assert depends(tensor, second)
    gone = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert gone() is None


def test_any_object_that_has_a_name_and_its_reads_is_a_recorded_call() -> None:
    class Queue:
        name = "queue"

        def __init__(self, *reads_from: Op) -> None:
            self.reads_from = reads_from

    source = call("source")
    queue = Queue(source)
    assert isinstance(queue, ReadsFrom)
    assert depends(queue, source)
    assert depends(call("step", queue), source)


@pytest.mark.parametrize("wrong", [lambda: 1, "add", 3])
def test_what_has_no_record_is_refused(wrong: object) -> None:
    good = call("good")
    for first, second in ((wrong, good), (good, wrong), (call("reader", wrong), good)):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"expected a tensor, an autograd node or a recorded call.*RecordedCall"):
            check_ops_dependence(first, second)  # type: ignore[arg-type]


def test_a_recorded_call_passes_arguments_on() -> None:
    add = RecordedCall(lambda a, *, b: a + b, name="add")
    assert add(1, b=2) == 3
    assert repr(add) == "RecordedCall('add')"
