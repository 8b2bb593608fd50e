"""Co-action: an item's vector is a tiny network that the user's vectors go through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from monolith.nn._arguments import require_mask, require_positive, require_shape
from monolith.nn.layers.activations import activation_layer

if TYPE_CHECKING:
    from monolith.nn.layers.activations import Activation


class CAN(nn.Module):
    """Co-action unit: ``h_0 = user; h_{l+1} = act(h_l W_l + b_l)``, all W and b cut out of the item's vector.

    The item's vector ``[B, layers (u^2 + u)]`` holds W_0 ``[u, u]``, b_0 ``[u]``, W_1, b_1, ... The layer has no
    weights of its own. Reference: Zhou et al., CAN, arXiv:2011.05625.

    Args:
        num_layers: Number of layers of the tiny network.
        activation: Of every layer, the last one included.
        is_sequence: Whether the last dim but one of the user's vectors is time, over which the results are summed.
    """

    def __init__(self, num_layers: int = 2, *, activation: Activation = "relu", is_sequence: bool = False) -> None:
        super().__init__()
        require_positive("CAN", num_layers=num_layers)
        self.num_layers = num_layers
        self.is_sequence = is_sequence
        self.activations = nn.ModuleList(activation_layer(activation) for _ in range(num_layers))

    def forward(self, user: Tensor, item: Tensor, mask: Tensor | None = None) -> Tensor:
        """Returns the user's vectors after the item's network.

        Args:
            user: ``[B, u]`` or ``[B, n, u]``; for sequences ``[B, T, u]`` or ``[B, n, T, u]``.
            item: ``[B, layers (u^2 + u)]``.
            mask: For sequences: ``[B, T]`` or ``[B, n, T]``, True where the step counts.

        Returns:
            The shape of `user`, for sequences without T; zeros for an empty sequence.
        """
        self._check(user, item)
        dim = user.shape[-1]
        h = user.reshape(user.shape[0], user.shape[1:-1].numel(), dim)
        for layer, activation in zip(item.chunk(self.num_layers, dim=1), self.activations, strict=True):
            weight, bias = layer[:, : dim * dim].reshape(-1, dim, dim), layer[:, dim * dim :].unsqueeze(1)
            h = activation(h @ weight + bias)
        h = h.reshape(user.shape)
        if not self.is_sequence:
            return h
        if mask is not None:
            shape = user.shape[:-1] if mask.ndim == user.ndim - 1 else (user.shape[0], user.shape[-2])
            require_mask("CAN", mask, shape)
            steps = mask if mask.ndim == user.ndim - 1 else mask.unsqueeze(1)
            h = h.masked_fill(~steps.bool().unsqueeze(-1), 0.0)
        return h.sum(dim=-2)

    def _check(self, user: Tensor, item: Tensor) -> None:
        smallest = 3 if self.is_sequence else 2
        if not smallest <= user.ndim <= smallest + 1:
            raise ValueError(f"CAN: user must have {smallest} or {smallest + 1} dims, got shape {list(user.shape)}")
        dim = user.shape[-1]
        require_shape("CAN", "item", item, (user.shape[0], self.num_layers * dim * (dim + 1)))
