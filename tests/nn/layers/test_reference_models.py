"""The layers compose into models that learn: DeepFM, DCN-v2, DIN, MMoE and two towers, on data made for each.

Embeddings are torch's own here: what is tested is the dense side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from monolith.metrics import ExactAUC
from monolith.nn import DCN, DIN, FM, MLP, MMoE, batch_softmax_loss, get_sigmoid_loss_and_pred

pytestmark = pytest.mark.timeout(900)  # ends hangs; a busy machine may take ten times as long as an idle one

NUM_IDS, DIM, ROWS = 20, 8, 4096


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    """One thread: on a busy machine small operations wait for each other's threads far longer than they compute."""
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def minimise(model: nn.Module, loss: Callable[[Tensor], Tensor], num_steps: int = 250) -> None:
    """Adam over random batches of row numbers."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(num_steps):
        optimizer.zero_grad()
        torch.autograd.backward(loss(torch.randint(ROWS, (256,))))
        optimizer.step()


def auc(predictions: Tensor, labels: Tensor) -> float:
    metric = ExactAUC()
    metric.update(predictions, labels)
    return metric.compute()


def interacting_clicks() -> tuple[Tensor, Tensor]:
    """Ids of three features and clicks that depend on pairs of them, and on none alone."""
    ids = torch.randint(NUM_IDS, (ROWS, 3))
    vectors = torch.randn(NUM_IDS, 4)
    first, second, third = (vectors[ids[:, feature]] for feature in range(3))
    logits = (first * second).sum(dim=1) + (second * third).sum(dim=1)
    return ids, (torch.rand(ROWS) < torch.sigmoid(3 * logits)).float()


class DeepFM(nn.Module):
    """logit = bias of each id + FM + MLP, over one set of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3 * NUM_IDS, DIM)
        self.bias = nn.Embedding(3 * NUM_IDS, 1)
        self.fm = FM()
        self.tower = MLP(3 * DIM, [32, 1])

    def forward(self, ids: Tensor) -> Tensor:
        places = ids + NUM_IDS * torch.arange(3)
        x = self.embedding(places)
        logit: Tensor = self.bias(places).sum(dim=1) + self.fm(x) + self.tower(x.flatten(1))
        return logit.squeeze(1)


class DCNv2(nn.Module):
    """Cross network and tower side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3 * NUM_IDS, DIM)
        self.cross = DCN(3 * DIM, 2, kind="mixed", rank=8, num_experts=2)
        self.tower = MLP(3 * DIM, [32, 16], activations=["relu", "relu"])
        self.head = MLP(3 * DIM + 16, [1])

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids + NUM_IDS * torch.arange(3)).flatten(1)
        logit: Tensor = self.head(torch.cat([self.cross(x), self.tower(x)], dim=1))
        return logit.squeeze(1)


@pytest.mark.parametrize("make", [DeepFM, pytest.param(DCNv2, marks=pytest.mark.slow)])
def test_interaction_models_learn_what_no_single_feature_predicts(make: type[DeepFM | DCNv2]) -> None:
    ids, clicks = interacting_clicks()
    model = make()
    minimise(model, lambda rows: get_sigmoid_loss_and_pred(model(ids[rows]), clicks[rows]).loss)
    linear = nn.Linear(3 * NUM_IDS, 1)
    one_hot = nn.functional.one_hot(ids + NUM_IDS * torch.arange(3), 3 * NUM_IDS).sum(dim=1).float()
    minimise(linear, lambda rows: get_sigmoid_loss_and_pred(linear(one_hot[rows]).squeeze(1), clicks[rows]).loss)
    assert auc(linear(one_hot), clicks) < 0.75
    assert auc(model(ids), clicks) > 0.9


@pytest.mark.slow
def test_din_learns_whether_the_candidate_is_like_the_history() -> None:
    length = 6
    history, candidate = torch.randint(NUM_IDS, (ROWS, length)), torch.randint(NUM_IDS, (ROWS,))
    mask = torch.arange(length) < torch.randint(length + 1, (ROWS, 1))
    clicks = ((history == candidate.unsqueeze(1)) & mask).any(dim=1).float()
    embedding, din, head = nn.Embedding(NUM_IDS, DIM), DIN(DIM, [16, 1]), MLP(2 * DIM, [16, 1])
    model = nn.ModuleList([embedding, din, head])

    def logits(rows: Tensor) -> Tensor:
        query = embedding(candidate[rows])
        interest = din(query, embedding(history[rows]), mask[rows])
        result: Tensor = head(torch.cat([query, interest], dim=1)).squeeze(1)
        return result

    minimise(model, lambda rows: get_sigmoid_loss_and_pred(logits(rows), clicks[rows]).loss, 400)
    assert auc(logits(torch.arange(ROWS)), clicks) > 0.9


@pytest.mark.slow
def test_mmoe_learns_two_tasks_that_pull_apart() -> None:
    x = torch.randn(ROWS, 6)
    clicks = (x[:, 0] * x[:, 1] > 0).float()
    buys = (x[:, 0] * x[:, 1] < x[:, 2]).float()
    model = MMoE(6, [32, 16], num_tasks=2, num_experts=3, activations=["relu", "relu"])
    heads = nn.ModuleList([MLP(16, [1]), MLP(16, [1])])

    def logits(rows: Tensor) -> list[Tensor]:
        return [head(each).squeeze(1) for head, each in zip(heads, model(x[rows]), strict=True)]

    def loss(rows: Tensor) -> Tensor:
        first, second = logits(rows)
        return get_sigmoid_loss_and_pred(first, clicks[rows]).loss + get_sigmoid_loss_and_pred(second, buys[rows]).loss

    minimise(nn.ModuleList([model, heads]), loss)
    first, second = logits(torch.arange(ROWS))
    assert auc(first, clicks) > 0.95
    assert auc(second, buys) > 0.95


@pytest.mark.slow
def test_two_towers_retrieve_the_right_item() -> None:
    users, num_items = torch.randint(50, (ROWS,)), 50
    items = (7 * users + 3) % num_items  # every user wants one item
    user_tower = nn.Sequential(nn.Embedding(50, DIM), MLP(DIM, [16, DIM]))
    item_tower = nn.Sequential(nn.Embedding(num_items, DIM), MLP(DIM, [16, DIM]))
    interval = torch.full((256,), float(num_items) / 256)

    def loss(rows: Tensor) -> Tensor:
        return batch_softmax_loss(user_tower(users[rows]), item_tower(items[rows]), interval, temperature=0.1)

    minimise(nn.ModuleList([user_tower, item_tower]), loss)
    every_user, every_item = torch.arange(50), torch.arange(num_items)
    scores = nn.functional.normalize(user_tower(every_user)) @ nn.functional.normalize(item_tower(every_item)).T
    assert (scores.argmax(dim=1) == (7 * every_user + 3) % num_items).float().mean() > 0.95
