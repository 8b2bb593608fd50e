"""Find similar items: train embeddings, read them from the model, and search the nearest neighbours.

    python examples/neighbours.py              # some seconds; uses faiss if it is installed, else torch

Every user likes one of twenty genres and mostly visits items of it. The model has a vector for each user and each item.
It trains on visits only, without the genres, and uses the items of the other visits of a batch as negatives. Then
`Embeddings.vectors` returns the item vectors with their ids.
Expected: of the 10 nearest neighbours of an item, 90 % or more are of its genre; by chance it would be 5 %.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

import monolith as ml

USERS, ITEMS, GENRES, DIM = 500, 500, 20, 16
VISITS, BATCH, TOP = 60_000, 250, 10
LEAST_SHARE = 0.9


def make_visits(draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Generate users [n] and the items that they visit [n]; the genre of an item is its id modulo twenty."""
    user = torch.randint(USERS, (VISITS,), generator=draw)
    of_genre = GENRES * torch.randint(ITEMS // GENRES, (VISITS,), generator=draw) + user % GENRES
    anything = torch.randint(ITEMS, (VISITS,), generator=draw)
    return user, torch.where(torch.rand(VISITS, generator=draw) < 0.8, of_genre, anything)


def train(user: Tensor, item: Tensor) -> ml.Embeddings:
    """Train for one pass over the visits; the rows are the only weights."""
    adagrad = ml.row_optimizers.Adagrad(learning_rate=0.1, initial_accumulator_value=1e-8)
    emb = ml.Embeddings({"user": ml.Slot(DIM), "item": ml.Slot(DIM)}, adagrad)
    for start in range(0, VISITS, BATCH):
        x = emb({"user": user[start : start + BATCH], "item": item[start : start + BATCH]})
        torch.autograd.backward(ml.nn.batch_softmax_loss(x["user"], x["item"], normalize=False))
        emb.step()
    return emb


def nearest(vectors: Tensor, queries: Tensor, count: int) -> Tensor:
    """Return the indices [q, count] of the vectors with the highest cosine similarity to each query."""
    vectors, queries = torch.nn.functional.normalize(vectors), torch.nn.functional.normalize(queries)
    if importlib.util.find_spec("faiss") is None:
        return (queries @ vectors.T).topk(count).indices
    import faiss  # noqa: PLC0415 - faiss is optional

    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors.numpy())
    _, indices = index.search(queries.numpy(), count)
    return torch.from_numpy(indices)


def main() -> None:
    """Train, read the vectors, and print the neighbours of two items."""
    emb = train(*make_visits(torch.Generator().manual_seed(0)))
    ids, vectors = emb.vectors("item")
    neighbours = nearest(vectors, vectors, TOP + 1)[:, 1:]  # the nearest vector is that of the item itself
    for query in (0, 1):
        print(f"near item {int(ids[query])}: {ids[neighbours[query]].tolist()}")
    share = float((ids[neighbours] % GENRES == ids[:, None] % GENRES).float().mean())
    print(f"{share:.1%} of {TOP} neighbours are of the item's genre")
    assert share >= LEAST_SHARE, f"expected at least {LEAST_SHARE:.0%}"


if __name__ == "__main__":
    main()
