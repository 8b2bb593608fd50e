"""Second-order interactions of n features: the factorisation machine and its relatives.

Inputs are ``X [B, n, k]``: n features with an embedding ``x_i`` of dim k each.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from monolith.nn._arguments import require_positive, require_shape


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
