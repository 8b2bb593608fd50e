"""Interactions of n features ``X [B, n, k]``: all pairs, groups of pairs, compressed products and attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from monolith.nn._arguments import positive_sizes, require_choice, require_mask, require_positive, require_shape
from monolith.nn.layers.activations import activation_layer
from monolith.nn.layers.attention import MultiHeadAttention
from monolith.nn.layers.mlp import MLP
from monolith.nn.layers.pooling import OUT_TYPES, merge_tensor_list, stack_features

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from monolith.nn.layers.activations import Activation
    from monolith.nn.layers.mlp import MLPConfig
    from monolith.nn.layers.pooling import OutType


def _pair_indices(num_features: int, device: torch.device) -> tuple[Tensor, Tensor]:
    rows, columns = torch.triu_indices(num_features, num_features, offset=1, device=device).unbind(0)
    return rows, columns


class BiInteraction(nn.Module):
    """``y = sum over i < j of x_i * x_j``, element by element, as ``((sum x_i)^2 - sum x_i^2) / 2``: ``[B, k]``.

    Reference: He and Chua, Neural Factorization Machines, arXiv:1708.05027.
    """

    def forward(self, features: Tensor) -> Tensor:
        """``[B, k]`` for `features` ``[B, n, k]``."""
        require_shape("BiInteraction", "features", features, ("B", "n", "k"))
        return 0.5 * (features.sum(dim=1).square() - features.square().sum(dim=1))


class FM(nn.Module):
    """``y = sum over i < j of <x_i, x_j>``: the second-order part of a factorisation machine, ``[B, 1]``, in O(n k).

    Reference: Rendle, Factorization Machines, ICDM 2010; in parallel with an MLP: DeepFM, arXiv:1703.04247.

    >>> FM()(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]))
    tensor([[11.]])
    """

    def __init__(self) -> None:
        super().__init__()
        self.pairs = BiInteraction()

    def forward(self, features: Tensor) -> Tensor:
        """``[B, 1]`` for `features` ``[B, n, k]``."""
        pairs: Tensor = self.pairs(features)
        return pairs.sum(dim=1, keepdim=True)


class InnerProduct(nn.Module):
    """``y_(i,j) = <x_i, x_j>`` for all i < j, row by row: ``[B, n (n - 1) / 2]``.

    The interaction of PNN (arXiv:1611.00144) and DLRM (arXiv:1906.00091).
    """

    def forward(self, features: Tensor) -> Tensor:
        """``[B, n (n - 1) / 2]`` for `features` ``[B, n, k]``, in the order (0, 1), (0, 2), ..., (1, 2), ..."""
        require_shape("InnerProduct", "features", features, ("B", "n", "k"))
        rows, columns = _pair_indices(features.shape[1], features.device)
        return torch.bmm(features, features.transpose(1, 2))[:, rows, columns]


class FieldWeightedFM(nn.Module):
    """``y = sum over i < j of r_ij <x_i, x_j>`` with a learned weight for each pair of fields: ``[B, 1]``.

    The weights start at 1, where it is an `FM`. Reference: Pan et al., FwFM, arXiv:1806.03514.

    Args:
        num_features: n.
    """

    def __init__(self, num_features: int) -> None:
        super().__init__()
        require_positive("FieldWeightedFM", num_features=num_features)
        self.num_features = num_features
        self.pairs = InnerProduct()
        self.weight = nn.Parameter(torch.ones(num_features * (num_features - 1) // 2))

    def forward(self, features: Tensor) -> Tensor:
        """``[B, 1]`` for `features` ``[B, n, k]``."""
        require_shape("FieldWeightedFM", "features", features, ("B", self.num_features, "k"))
        pairs: Tensor = self.pairs(features)
        return (pairs * self.weight).sum(dim=1, keepdim=True)


class AFM(nn.Module):
    """Attention over the pairs of a factorisation machine: ``[B, k]``.

    ``p_ij = x_i * x_j``; ``a_ij = softmax over pairs of h . relu(p_ij W + b)``; ``y = sum over i < j of a_ij p_ij``.
    One feature has no pairs and gives zeros. Reference: Xiao et al., AFM, arXiv:1708.04617.

    Args:
        dim: k.
        attention_dim: Size of the attention's hidden layer.
    """

    def __init__(self, dim: int, attention_dim: int) -> None:
        super().__init__()
        require_positive("AFM", dim=dim, attention_dim=attention_dim)
        self.dim = dim
        self.hidden = nn.Linear(dim, attention_dim)
        self.score = nn.Linear(attention_dim, 1, bias=False)
        nn.init.xavier_uniform_(self.hidden.weight)
        nn.init.zeros_(self.hidden.bias)
        nn.init.xavier_uniform_(self.score.weight)

    def forward(self, features: Tensor) -> Tensor:
        """``[B, k]`` for `features` ``[B, n, k]``."""
        require_shape("AFM", "features", features, ("B", "n", self.dim))
        rows, columns = _pair_indices(features.shape[1], features.device)
        pairs = features[:, rows] * features[:, columns]
        attention = torch.softmax(self.score(torch.relu(self.hidden(pairs))), dim=1)
        return (attention * pairs).sum(dim=1)


class GroupInt(nn.Module):
    """Each left feature against each right one, left-major; also known as the field-aware product, `FFM`.

    dot: ``y_(i,j) = <l_i, r_j>``, ``[B, L R]``. multiply: ``y_(i,j) = l_i * r_j``, ``[B, L R k]``. With attention
    (multiply only), ``y_(i,j) = a_ij l_i * r_j``, where ``a_ij = MLP(l_i * r_j)`` is one number.

    Features of one group are usually summed first, so that the output stays small: L R instead of n (n - 1) / 2.

    Args:
        interaction_type: "multiply" or "dot".
        attention_units: Units of the attention's MLP, the last one 1. None: no attention.
        dim: k; needed with attention only.
        options: `MLP` options of the attention.
    """

    def __init__(
        self,
        interaction_type: Literal["multiply", "dot"] = "multiply",
        *,
        attention_units: Sequence[int] | None = None,
        dim: int | None = None,
        **options: Unpack[MLPConfig],
    ) -> None:
        super().__init__()
        require_choice("GroupInt", "interaction_type", interaction_type, ("multiply", "dot"))
        self.interaction_type = interaction_type
        self.attention: MLP | None = None
        if attention_units is None:
            return
        if interaction_type == "dot":
            raise ValueError("GroupInt: attention needs interaction_type 'multiply', got 'dot'")
        if dim is None:
            raise ValueError("GroupInt: attention needs dim, the size of a feature, got None")
        require_attention_units("GroupInt", "attention_units", attention_units)
        self.attention = MLP(dim, attention_units, **options)

    def forward(self, left: Tensor | Sequence[Tensor], right: Tensor | Sequence[Tensor]) -> Tensor:
        """Returns the interactions of `left` (L tensors ``[B, k]`` or one ``[B, L, k]``) with `right` (R of them)."""
        left_features = stack_features("GroupInt", left)
        right_features = stack_features("GroupInt", right)
        if left_features.shape[::2] != right_features.shape[::2]:
            sizes = f"{list(left_features.shape)} and {list(right_features.shape)}"
            raise ValueError(f"GroupInt: left and right must agree in batch and dim, got {sizes}")
        if self.interaction_type == "dot":
            return torch.bmm(left_features, right_features.transpose(1, 2)).flatten(1)
        products = left_features.unsqueeze(2) * right_features.unsqueeze(1)
        if self.attention is not None:
            products = products * self.attention(products)
        return products.flatten(1)


FFM = GroupInt


def require_attention_units(subject: str, name: str, units: Sequence[int]) -> None:
    """Raises if the units of an attention tower do not end in a single one."""
    if not units or units[-1] != 1:
        raise ValueError(f"{subject}: {name} must end in 1, the weight of one element, got {list(units)}")


class AllInt(nn.Module):
    """All pairs, compressed to c columns: ``Y = X (X^T C + b)`` for ``X [B, n, k]``, ``C [n, c]``, ``b [c]``.

    ``[B, n, c]``, flattened for "concat". The product with C first keeps the n x n matrix out of memory.

    Args:
        num_features: n.
        cmp_dim: c.
        use_bias: Whether to add b, which starts at 0.
        out_type: See `merge_tensor_list`.
    """

    def __init__(self, num_features: int, cmp_dim: int, *, use_bias: bool = True, out_type: OutType = "concat") -> None:
        super().__init__()
        require_positive("AllInt", num_features=num_features, cmp_dim=cmp_dim)
        require_choice("AllInt", "out_type", out_type, OUT_TYPES)
        self.num_features = num_features
        self.out_type: OutType = out_type
        self.kernel = nn.Parameter(nn.init.xavier_normal_(torch.empty(num_features, cmp_dim)))
        self.bias = nn.Parameter(torch.zeros(cmp_dim)) if use_bias else None

    def forward(self, features: Tensor) -> Tensor | list[Tensor]:
        """Returns the compressed interactions of `features` ``[B, n, k]``."""
        require_shape("AllInt", "features", features, ("B", self.num_features, "k"))
        compressed = features.transpose(1, 2) @ self.kernel
        if self.bias is not None:
            compressed = compressed + self.bias
        return merge_tensor_list(features @ compressed, self.out_type)


class CDot(nn.Module):
    """Compression that depends on the data, then dot products.

    ``P = X^T W`` (``[B, k, p]``); ``M = MLP(flat P)`` (``[B, k p]``); ``y = concat(flat(X M), M)`` with M read as
    ``[B, k, p]`` in the product: ``[B, n p + k p]``.

    Args:
        num_features: n.
        dim: k.
        project_dim: p.
        units: Hidden units of the MLP; its last layer, of size k p, is added here.
        options: `MLP` options.
    """

    def __init__(
        self, num_features: int, dim: int, *, project_dim: int, units: Sequence[int], **options: Unpack[MLPConfig]
    ) -> None:
        super().__init__()
        require_positive("CDot", num_features=num_features, dim=dim, project_dim=project_dim)
        hidden = positive_sizes("CDot", "units", units) if units else ()
        self.num_features = num_features
        self.dim = dim
        self.project_dim = project_dim
        self.projection = nn.Parameter(nn.init.xavier_normal_(torch.empty(num_features, project_dim)))
        self.tower = MLP(dim * project_dim, [*hidden, dim * project_dim], **options)
        self.output_dim = (num_features + dim) * project_dim

    def forward(self, features: Tensor) -> Tensor:
        """``[B, (n + k) p]`` for `features` ``[B, n, k]``."""
        require_shape("CDot", "features", features, ("B", self.num_features, self.dim))
        projected = features.transpose(1, 2) @ self.projection
        compressed: Tensor = self.tower(projected.flatten(1))
        crossed = features @ compressed.reshape(-1, self.dim, self.project_dim)
        return torch.cat([crossed.flatten(1), compressed], dim=1)


class CIN(nn.Module):
    """Compressed interaction network of xDeepFM: ``[B, sum of units]``.

    ``x^l_(h,d) = act(sum over i, j of W^l_(h,i,j) x^(l-1)_(i,d) x^0_(j,d) + b^l_h)`` for each embedding coordinate d;
    the last layer has no activation. The output concatenates, over layers, ``sum over d of x^l_(h,d)``.

    Reference: Lian et al., xDeepFM, arXiv:1803.05170.

    Args:
        num_features: n, of the input ``[B, n, k]``.
        units: Feature maps of each layer.
        activation: Of all layers but the last; none by default.
    """

    def __init__(self, num_features: int, units: Sequence[int], *, activation: Activation = None) -> None:
        super().__init__()
        require_positive("CIN", num_features=num_features)
        sizes = positive_sizes("CIN", "units", units)
        self.num_features = num_features
        self.output_dim = sum(sizes)
        self.maps = nn.ModuleList(
            nn.Linear(size_in * num_features, size_out)
            for size_in, size_out in zip((num_features, *sizes[:-1]), sizes, strict=True)
        )
        self.activations = nn.ModuleList(
            activation_layer(activation if index < len(sizes) - 1 else None) for index in range(len(sizes))
        )
        for linear in self.maps:
            nn.init.xavier_uniform_(linear.weight)  # type: ignore[arg-type]
            nn.init.zeros_(linear.bias)  # type: ignore[arg-type]

    def forward(self, features: Tensor) -> Tensor:
        """``[B, sum of units]`` for `features` ``[B, n, k]``."""
        require_shape("CIN", "features", features, ("B", self.num_features, "k"))
        x0 = features.transpose(1, 2)
        x, sums = x0, []
        for linear, activation in zip(self.maps, self.activations, strict=True):
            x = activation(linear((x.unsqueeze(3) * x0.unsqueeze(2)).flatten(2)))
            sums.append(x.sum(dim=1))
        return torch.cat(sums, dim=1)


class AutoInt(nn.Module):
    """Self-attention over the features of an example, layer after layer.

    Plain (no `num_heads`): ``X <- softmax(X X^T) X``, without weights. With heads, as in the paper:
    ``X <- relu(MultiHead(X, X, X) + X W_res)`` with learned projections (see `MultiHeadAttention`).

    Reference: Song et al., AutoInt, arXiv:1810.11921.

    Args:
        num_layers: Number of rounds.
        dim: k, of the input ``[B, n, k]``; needed with heads only.
        num_heads: Number of attention heads, a divisor of `dim`. None: the plain form.
        out_type: See `merge_tensor_list`.
    """

    def __init__(
        self,
        num_layers: int = 1,
        *,
        dim: int | None = None,
        num_heads: int | None = None,
        out_type: OutType = "concat",
    ) -> None:
        super().__init__()
        require_positive("AutoInt", num_layers=num_layers)
        require_choice("AutoInt", "out_type", out_type, OUT_TYPES)
        if num_heads is not None and dim is None:
            raise ValueError("AutoInt: num_heads needs dim, the size of a feature, got None")
        self.num_layers = num_layers
        self.out_type: OutType = out_type
        rounds = num_layers if num_heads is not None else 0
        self.attention = nn.ModuleList(MultiHeadAttention(dim or 0, num_heads or 0) for _ in range(rounds))
        self.residual = nn.ModuleList(nn.Linear(dim or 0, dim or 0, bias=False) for _ in range(rounds))

    def forward(self, features: Tensor) -> Tensor | list[Tensor]:
        """Returns the features after all rounds, for `features` ``[B, n, k]``."""
        require_shape("AutoInt", "features", features, ("B", "n", "k"))
        x = features
        if not self.attention:
            for _ in range(self.num_layers):
                x = torch.softmax(x @ x.transpose(1, 2), dim=-1) @ x
        for attention, residual in zip(self.attention, self.residual, strict=True):
            x = torch.relu(attention(x) + residual(x))
        return merge_tensor_list(x, self.out_type)


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
