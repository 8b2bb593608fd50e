"""Vectors out of one flat buffer, and their gradients back into it."""

from __future__ import annotations

import pytest
import torch

from monolith.errors import InvalidArgumentError
from monolith.tables.fused_gather import fused_gather
from monolith.tables.id_kernels import fused_reorder_by_indices


def test_each_list_gets_the_numbers_at_its_offsets() -> None:
    flat = torch.arange(10.0)
    narrow, wide, none = fused_gather(
        flat,
        [torch.tensor([9, 0, 9]), torch.tensor([7, 2], dtype=torch.int32), torch.tensor([], dtype=torch.int64)],
        [1, 3, 2],
    )
    assert narrow.tolist() == [[9.0], [0.0], [9.0]]
    assert wide.tolist() == [[7.0, 8.0, 9.0], [2.0, 3.0, 4.0]]
    assert none.shape == (0, 2)
    assert fused_gather(flat, [], []) == []


def test_the_offsets_of_a_reorder_lead_every_id_to_its_vector() -> None:
    lists = [[0, 1, 0], [3, 2, 3], [5, 6, 7]]
    reordered = fused_reorder_by_indices(lists, 2, [1, 2, 3])
    owners = {0: 0, 2: 1, 6: 2, 1: 0, 3: 1, 5: 2, 7: 2}
    flat = torch.cat([torch.full((1 + owners[key],), float(key)) for key in reordered.ids.tolist()])
    parts = fused_gather(flat, list(torch.split(torch.as_tensor(reordered.offsets), [3, 3, 3])), [1, 2, 3])
    for ids, dim, part in zip(lists, (1, 2, 3), parts, strict=True):
        assert part.tolist() == [[float(key)] * dim for key in ids]


@pytest.mark.parametrize(("options", "scale"), [({}, 1.0), ({"scale": 0.25}, 0.25)])
def test_the_gradient_adds_up_where_vectors_overlap_and_is_scaled(options: dict[str, float], scale: float) -> None:
    flat = torch.arange(6.0, requires_grad=True)
    first, second = fused_gather(flat, [torch.tensor([0, 4, 0]), torch.tensor([3])], [2, 3], **options)
    weights = torch.tensor([[1.0, 2.0], [3.0, 4.0], [10.0, 20.0]])
    loss = (first * weights).sum() + (second * torch.tensor([[5.0, 6.0, 7.0]])).sum()
    torch.autograd.backward(loss)
    assert flat.grad is not None
    assert flat.grad.tolist() == [scale * each for each in (11.0, 22.0, 0.0, 5.0, 9.0, 11.0)]


@pytest.mark.parametrize(
    ("offsets", "dims", "text"),
    [
        ([torch.tensor([0])], [1, 2], "1 lists of offsets, but 2 dims"),
        ([torch.tensor([3])], [2], "vectors of 2 must lie inside the 4 numbers of the buffer, got offsets from 3 to 3"),
        ([torch.tensor([-1, 0])], [1], "got offsets from -1 to 0"),
        ([torch.tensor([0])], [0], "dims must be at least 1, got 0"),
    ],
)
def test_what_lies_outside_is_refused(offsets: list[torch.Tensor], dims: list[int], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        fused_gather(torch.zeros(4), offsets, dims)
    assert fused_gather(torch.zeros(4), [torch.tensor([2])], [2])[0].shape == (1, 2)


def test_a_buffer_that_is_not_flat_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"flat buffer expected, got shape \(2, 2\)"):
        fused_gather(torch.zeros(2, 2), [torch.tensor([0])], [1])
