"""What lies near an item: train vectors, take them out of the model, ask for nearest neighbours.

    python examples/neighbours.py              # some seconds; uses faiss where it is installed, else torch

Every visitor likes one of twenty genres and mostly visits items of it. The model sees visits alone, never a genre:
a vector for each user and each item, and the items of the other visits of a batch as negatives. Then the item vectors
leave it by `Embeddings.vectors`, with the ids that the data had.
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
    """Users [n] and the items that they visited [n]; a genre is the remainder of a number by twenty."""
    user = torch.randint(USERS, (VISITS,), generator=draw)
    of_genre = GENRES * torch.randint(ITEMS // GENRES, (VISITS,), generator=draw) + user % GENRES
    anything = torch.randint(ITEMS, (VISITS,), generator=draw)
    return user, torch.where(torch.rand(VISITS, generator=draw) < 0.8, of_genre, anything)


def train(user: Tensor, item: Tensor) -> ml.Embeddings:
    """One pass over the visits; the rows are all that there is to train."""
    adagrad = ml.row_optimizers.Adagrad(learning_rate=0.1, initial_accumulator_value=1e-8)
    emb = ml.Embeddings({"user": ml.Slot(DIM), "item": ml.Slot(DIM)}, adagrad)
    for start in range(0, VISITS, BATCH):
        x = emb({"user": user[start : start + BATCH], "item": item[start : start + BATCH]})
        torch.autograd.backward(ml.nn.batch_softmax_loss(x["user"], x["item"], normalize=False))
        emb.step()
    return emb


def nearest(vectors: Tensor, queries: Tensor, count: int) -> Tensor:
    """[q, count]: places of the vectors with the highest cosine to each query."""
    vectors, queries = (torch.nn.functional.normalize(each) for each in (vectors, queries))
    if importlib.util.find_spec("faiss") is None:
        return (queries @ vectors.T).topk(count).indices
    import faiss  # noqa: PLC0415 - only where it is installed

    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors.numpy())
    _, places = index.search(queries.numpy(), count)
    return torch.from_numpy(places)


def main() -> None:
    """Train, take the vectors out, look around."""
    emb = train(*make_visits(torch.Generator().manual_seed(0)))
    ids, vectors = emb.vectors("item")
    places = nearest(vectors, vectors, TOP + 1)[:, 1:]  # the nearest one is the item itself
    for query in (0, 1):
        print(f"near item {int(ids[query])}: {ids[places[query]].tolist()}")
    share = float((ids[places] % GENRES == ids[:, None] % GENRES).float().mean())
    print(f"{share:.1%} of {TOP} neighbours are of the item's genre")
    assert share >= LEAST_SHARE, f"expected at least {LEAST_SHARE:.0%}"


if __name__ == "__main__":
    main()
