"""Interest of a user in a candidate: the history, weighted by what it has to do with the candidate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from monolith.nn._arguments import require_choice, require_positive
from monolith.nn.layers.attention import require_query_and_keys, zero_masked
from monolith.nn.layers.group_interaction import require_attention_units
from monolith.nn.layers.mlp import MLP

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from monolith.nn.layers.mlp import MLPConfig


class DIN(nn.Module):
    """Deep interest network: local activation of a history by a candidate.

    ``a_t = MLP([q, k_t, q - k_t, q * k_t])``, divided by sqrt(d) if `scaled`; ``y = sum over t of a_t k_t`` ("sum"), or
    ``y_t = a_t k_t`` (None). The weights are not normalised: their sum is the strength of the interest. Masked steps
    have weight 0, so an empty history gives zeros.

    Reference: Zhou et al., DIN, arXiv:1706.06978.

    Args:
        dim: d, of the query ``[B, d]`` and the keys ``[B, T, d]``.
        units: Units of the MLP, the last one 1.
        mode: "sum" or None.
        scaled: Whether to divide the weights by sqrt(d).
        options: `MLP` options.

    >>> DIN(4, [8, 1])(torch.zeros(2, 4), torch.zeros(2, 5, 4)).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        dim: int,
        units: Sequence[int],
        *,
        mode: Literal["sum"] | None = "sum",
        scaled: bool = False,
        **options: Unpack[MLPConfig],
    ) -> None:
        super().__init__()
        require_positive("DIN", dim=dim)
        require_attention_units("DIN", "units", units)
        require_choice("DIN", "mode", mode, ("sum", None))
        self.dim = dim
        self.mode = mode
        self.scaled = scaled
        self.tower = MLP(4 * dim, units, **options)

    def forward(self, query: Tensor, keys: Tensor, mask: Tensor | None = None) -> Tensor:
        """Returns the interest in `query` ``[B, d]`` of the history `keys` ``[B, T, d]``.

        Args:
            query: The candidate.
            keys: The history.
            mask: ``[B, T]``, True where the step counts.

        Returns:
            ``[B, d]`` for mode "sum", ``[B, T, d]`` for None.
        """
        require_query_and_keys("DIN", query, keys, self.dim)
        keys = zero_masked("DIN", keys, mask)
        queries = query.unsqueeze(1).expand_as(keys)
        weights: Tensor = self.tower(torch.cat([queries, keys, queries - keys, queries * keys], dim=2))
        if self.scaled:
            weights = weights * self.dim**-0.5
        if self.mode == "sum":
            return torch.einsum("bto,btd->bd", weights, keys)
        return weights * keys
