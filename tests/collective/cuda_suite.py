"""One rank with its tensors on a GPU: python cuda_suite.py FOLDER RANK NUM_RANKS."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from collective.ranks import meet, write_result
from monolith import collective

if __name__ == "__main__":
    folder, rank, num_ranks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    meet(folder, rank, num_ranks)
    collective.init(timeout_seconds=60)
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    mine = torch.full((rank + 1,), rank + 1.0, device=device)
    write_result(
        folder,
        rank,
        {
            "sum": collective.allreduce(torch.full((2,), rank + 1.0, device=device)).tolist(),
            "mean": collective.allreduce(torch.full((2,), rank + 1.0, device=device), average=True).tolist(),
            "rows": collective.allgather(mine).tolist(),
            "first": collective.broadcast(mine[:1]).tolist(),
        },
    )
    collective.shutdown()
