"""The tower: dense layers on top of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, cast

from torch import Tensor, nn

from monolith.nn._arguments import positive_sizes, require_last_dim, require_positive
from monolith.nn.layers.activations import Activation, activation_layer, per_layer_activations
from monolith.nn.layers.dense import BatchNorm, Dense, Initializer, KernelNorm
from monolith.observe import feature_insight

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Unpack


class MLPConfig(TypedDict, total=False):
    """What a layer that builds an `MLP` passes on to it."""

    activations: Activation | Sequence[Activation]
    use_bias: bool
    kernel_norm: KernelNorm
    batch_norm: bool
    initializer: Initializer | None


class MLP(nn.Module):
    """Dense layers on top of each other.

    ``h_0 = x; h_{l+1} = act_l(h_l W_l + b_l)``, W with a learned length per unit (see `Dense`). With batch norm the
    input is normalised, and each hidden layer between its linear map and its activation.

    Args:
        input_dim: Size of the last dim of the input; all dims before it are rows.
        dims: Units of each layer.
        activations: None: relu on all but the last layer. One: that one on all but the last. A list: one for each.
        use_bias: Whether the layers add a bias.
        kernel_norm: See `Dense`.
        batch_norm: Whether to normalise over the batch.
        initializer: How the weights start; Glorot uniform by default.

    >>> import torch
    >>> MLP(8, [16, 1])(torch.zeros(4, 8)).shape
    torch.Size([4, 1])
    """

    def __init__(
        self,
        input_dim: int,
        dims: Sequence[int],
        *,
        activations: Activation | Sequence[Activation] = None,
        use_bias: bool = True,
        kernel_norm: KernelNorm = "trainable",
        batch_norm: bool = False,
        initializer: Initializer | None = None,
    ) -> None:
        super().__init__()
        self.input_dim = input_dim
        self.blocks = dense_blocks(
            "MLP",
            input_dim,
            dims,
            activations=activations,
            use_bias=use_bias,
            kernel_norm=kernel_norm,
            batch_norm=batch_norm,
            initializer=initializer,
        )
        self.input_norm = BatchNorm(input_dim) if batch_norm else nn.Identity()
        self.output_dim = dims[-1]

    @property
    def first_layer(self) -> Dense:
        """The layer that sees the input."""
        return cast("Dense", cast("nn.Sequential", self.blocks[0])[0])

    def forward(self, x: Tensor) -> Tensor:
        """Returns the output ``[..., dims[-1]]`` for `x` ``[..., input_dim]``."""
        require_last_dim("MLP", "input", x, self.input_dim)
        h: Tensor = self.input_norm(x)
        for block in self.blocks:
            h = block(h)
        return h

    def feature_insight(self, x: Tensor, segment_sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Returns how much each named segment of `x`'s columns moves the first layer, per row.

        Args:
            x: ``[B, input_dim]``.
            segment_sizes: Name and number of columns of each feature, in order.

        Returns:
            Name -> ``[B]``: the sum of squares of the feature's part of ``x W`` (see `feature_insight`).
        """
        kernel = self.first_layer.kernel().T
        parts = feature_insight(self.input_norm(x), kernel, list(segment_sizes.values()), aggregate=True)
        return dict(zip(segment_sizes, parts.unbind(dim=1), strict=True))


def dense_blocks(subject: str, input_dim: int, dims: Sequence[int], **options: Unpack[MLPConfig]) -> nn.ModuleList:
    """Returns one ``Sequential(Dense, BatchNorm if enabled and hidden, activation)`` per size, for `subject`."""
    require_positive(subject, input_dim=input_dim)
    sizes = positive_sizes(subject, "dims", dims)
    activations = per_layer_activations(subject, options.get("activations"), len(sizes))
    blocks = nn.ModuleList()
    for index, (size_in, size_out) in enumerate(zip((input_dim, *sizes[:-1]), sizes, strict=True)):
        dense = Dense(
            size_in,
            size_out,
            use_bias=options.get("use_bias", True),
            kernel_norm=options.get("kernel_norm", "trainable"),
            initializer=options.get("initializer"),
        )
        layers: list[nn.Module] = [dense]
        if options.get("batch_norm", False) and index < len(sizes) - 1:
            layers.append(BatchNorm(size_out))
        layers.append(activation_layer(activations[index]))
        blocks.append(nn.Sequential(*layers))
    return blocks
