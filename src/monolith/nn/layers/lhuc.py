"""A tower whose hidden units are gated by a second input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from monolith.nn._arguments import require_last_dim, require_positive
from monolith.nn.layers.mlp import MLP, dense_blocks
from monolith.nn.layers.normalization import BatchNorm

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from monolith.nn.layers.activations import Activation
    from monolith.nn.layers.mlp import MLPConfig


class LHUCTower(nn.Module):
    """Learning hidden unit contributions: each layer's output is scaled, unit by unit, by a small tower of its own.

    ``h_{l+1} = act_l(h_l W_l + b_l) * gate_l(g)``, where ``gate_l`` is an `MLP` that ends in ``2 sigmoid``. The gate's
    input g (often the user's or the scene's vector) may differ from the tower's.

    Reference: Swietojanski and Renals, arXiv:1601.02828.

    Args:
        input_dim: Size of the last dim of the tower's input.
        dims: Units of each layer of the tower.
        lhuc_dims: Hidden units of the gates: one list for all of them, or a list of lists, one for each layer. The last
            layer of a gate has the size of what it gates and is added here.
        lhuc_input_dim: Size of the last dim of the gates' input; `input_dim` by default.
        lhuc_options: `MLP` options of the gates where they differ from the tower's.
        options: `MLP` options of the tower; all but ``activations`` hold for the gates, too.
    """

    def __init__(
        self,
        input_dim: int,
        dims: Sequence[int],
        *,
        lhuc_dims: Sequence[int] | Sequence[Sequence[int]] = (),
        lhuc_input_dim: int | None = None,
        lhuc_options: MLPConfig | None = None,
        **options: Unpack[MLPConfig],
    ) -> None:
        super().__init__()
        self.input_dim = input_dim
        self.lhuc_input_dim = input_dim if lhuc_input_dim is None else lhuc_input_dim
        require_positive("LHUCTower", lhuc_input_dim=self.lhuc_input_dim)
        self.blocks = dense_blocks("LHUCTower", input_dim, dims, **options)
        self.input_norm = BatchNorm(input_dim) if options.get("batch_norm", False) else nn.Identity()
        self.gates = nn.ModuleList(
            self._gate([*hidden, dim], options, lhuc_options or {})
            for hidden, dim in zip(_hidden_dims(lhuc_dims, len(dims)), dims, strict=True)
        )
        self.output_dim = dims[-1]

    def _gate(self, dims: Sequence[int], options: MLPConfig, lhuc_options: MLPConfig) -> MLP:
        activations: Sequence[Activation] = ["relu"] * (len(dims) - 1) + ["sigmoid2"]
        merged: MLPConfig = {**options, "activations": activations, **lhuc_options}
        return MLP(self.lhuc_input_dim, dims, **merged)

    def forward(self, x: Tensor, lhuc_input: Tensor | None = None) -> Tensor:
        """Returns the output ``[..., dims[-1]]`` for `x` ``[..., input_dim]``, gated by `lhuc_input` (default `x`)."""
        require_last_dim("LHUCTower", "input", x, self.input_dim)
        gate_input = x if lhuc_input is None else lhuc_input
        require_last_dim("LHUCTower", "lhuc_input", gate_input, self.lhuc_input_dim)
        h: Tensor = self.input_norm(x)
        for block, gate in zip(self.blocks, self.gates, strict=True):
            h = block(h) * gate(gate_input)
        return h


def _hidden_dims(lhuc_dims: Sequence[int] | Sequence[Sequence[int]], num_layers: int) -> list[list[int]]:
    nested = [dims for dims in lhuc_dims if not isinstance(dims, int)]
    if not nested:
        flat = [dim for dim in lhuc_dims if isinstance(dim, int)]
        return [flat] * num_layers
    if len(nested) != len(lhuc_dims) or len(nested) != num_layers:
        raise ValueError(
            f"LHUCTower: lhuc_dims must be sizes, or one list of sizes per layer ({num_layers}), got {lhuc_dims!r}"
        )
    return [list(dims) for dims in nested]
