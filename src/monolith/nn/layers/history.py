"""A user's history against a candidate: attention (DIN, DMR) and recurrence (DIEN)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Tensor, nn

from monolith.nn._arguments import require_choice, require_mask, require_positive, require_shape
from monolith.nn.layers.activations import activation_layer
from monolith.nn.layers.attention import masked_softmax, require_query_and_keys, zero_masked
from monolith.nn.layers.dense import Dense
from monolith.nn.layers.interactions import require_attention_units
from monolith.nn.layers.mlp import MLP

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from monolith.nn.layers.activations import Activation
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


class DIEN(nn.Module):
    """Deep interest evolution network: ``[B, units]``.

    A GRU over the keys gives interests ``h_t``; ``a_t = softmax over t of (q W^T) . h_t``; a second GRU over the
    interests, steered by ``a_t`` (see `AGRUCell`), gives its last state. Masked steps have no weight and leave the
    states as they were; an empty history gives zeros.

    Reference: Zhou et al., DIEN, arXiv:1809.03672.

    Args:
        dim: Size of the keys.
        units: Size of both states.
        query_dim: Size of the query; `units` by default.
        att_type: "AGRU" or "AUGRU"; the paper prefers the second.
    """

    def __init__(self, dim: int, units: int, *, query_dim: int | None = None, att_type: AttentionType = "AGRU") -> None:
        super().__init__()
        self.query_dim = units if query_dim is None else query_dim
        require_positive("DIEN", dim=dim, units=units, query_dim=self.query_dim)
        self.dim = dim
        self.units = units
        self.extractor = AGRUCell(dim, units)
        self.evolution = AGRUCell(units, units, att_type=att_type)
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(units, self.query_dim)))

    def forward(self, query: Tensor, keys: Tensor, mask: Tensor | None = None) -> Tensor:
        """Returns the interest ``[B, units]`` in `query` ``[B, query_dim]`` of the history `keys` ``[B, T, dim]``."""
        require_shape("DIEN", "query", query, ("B", self.query_dim))
        require_shape("DIEN", "keys", keys, (query.shape[0], "T", self.dim))
        interests, _ = rnn_with_attention(self.extractor, keys, mask=mask)
        logits = torch.einsum("bu,btu->bt", query @ self.weight.T, interests)
        _, last = rnn_with_attention(self.evolution, interests, masked_softmax(logits, mask), mask=mask)
        return last


AttentionType: TypeAlias = Literal["AGRU", "AUGRU"]


class AGRUCell(nn.Module):
    """One step of a GRU with an attention score a.

    ``[r, u] = sigmoid([x, h] W_g + b_g)``; ``c = act([x, r * h] W_c + b_c)``; the new state is

    | | |
    |---|---|
    | without score | ``(1 - u) * h + u * c`` |
    | "AGRU" | ``(1 - a) h + a c`` |
    | "AUGRU" | ``u' * h + (1 - u') * c`` with ``u' = (1 - a) u`` |

    The biases start at 1.

    Args:
        input_dim: Size of x.
        units: Size of the state.
        att_type: "AGRU" or "AUGRU".
        activation: act; tanh by default.
    """

    def __init__(
        self, input_dim: int, units: int, *, att_type: AttentionType = "AGRU", activation: Activation = "tanh"
    ) -> None:
        super().__init__()
        require_positive("AGRUCell", input_dim=input_dim, units=units)
        require_choice("AGRUCell", "att_type", att_type, ("AGRU", "AUGRU"))
        self.input_dim = input_dim
        self.units = units
        self.att_type = att_type
        self.activation = activation_layer(activation)
        self.gates = nn.Linear(input_dim + units, 2 * units)
        self.candidate = nn.Linear(input_dim + units, units)
        for linear in (self.gates, self.candidate):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.ones_(linear.bias)

    def forward(self, x: Tensor, state: Tensor, score: Tensor | None = None) -> Tensor:
        """Returns the new state ``[B, units]`` from `x` ``[B, input_dim]``, the `state` and the `score` ``[B, 1]``."""
        reset, update = torch.sigmoid(self.gates(torch.cat([x, state], dim=1))).chunk(2, dim=1)
        candidate: Tensor = self.activation(self.candidate(torch.cat([x, reset * state], dim=1)))
        if score is None:
            return torch.lerp(state, candidate, update)
        if self.att_type == "AGRU":
            return state + score * (candidate - state)
        keep = (1.0 - score) * update
        return keep * state + (1.0 - keep) * candidate


def rnn_with_attention(
    cell: AGRUCell,
    inputs: Tensor,
    scores: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns all states and the last state of a sequence; a masked step does not change the state.

    Args:
        cell: What makes one step.
        inputs: ``[B, T, input_dim]``.
        scores: Attention ``[B, T]``. None: a plain GRU.
        mask: ``[B, T]``, True where the step counts.
        initial_state: ``[B, units]``; zeros by default.

    Returns:
        ``[B, T, units]`` and ``[B, units]``; for a sequence of no steps the latter is the initial state.
    """
    require_shape("rnn_with_attention", "inputs", inputs, ("B", "T", cell.input_dim))
    num_rows, num_steps = inputs.shape[:2]
    if scores is not None:
        require_shape("rnn_with_attention", "scores", scores, (num_rows, num_steps))
    if mask is not None:
        require_mask("rnn_with_attention", mask, (num_rows, num_steps))
        inputs = inputs.masked_fill(~mask.bool().unsqueeze(2), 0.0)
    state = inputs.new_zeros(num_rows, cell.units) if initial_state is None else initial_state
    require_shape("rnn_with_attention", "initial_state", state, (num_rows, cell.units))
    states = []
    for step in range(num_steps):
        new_state = cell(inputs[:, step], state, None if scores is None else scores[:, step, None])
        state = new_state if mask is None else torch.where(mask[:, step, None].bool(), new_state, state)
        states.append(state)
    if not states:
        return inputs.new_zeros(num_rows, 0, cell.units), state
    return torch.stack(states, dim=1), state


class DMR_U2I(nn.Module):  # noqa: N801 - the name of the paper and of ByteDance Monolith
    """The user-to-item network of deep match to rank: ``[B, item_dim]``.

    ``a_t = softmax over t of z . (pos_t + x_t E + b)``; ``y = act((sum over t of a_t x_t) W + c) * item``. An empty
    history is pooled to zeros. The element-by-element product takes the place of the paper's inner product and of its
    auxiliary loss.

    Reference: Lyu et al., Deep Match to Rank, AAAI 2020.

    Args:
        item_dim: Size of the item.
        sequence_dim: Size of a step of the history.
        max_length: Number of positions; longer histories are rejected.
        cmp_dim: Size of the attention's hidden layer.
        activation: act.
    """

    def __init__(
        self, item_dim: int, sequence_dim: int, *, max_length: int, cmp_dim: int, activation: Activation = "prelu"
    ) -> None:
        super().__init__()
        require_positive("DMR_U2I", item_dim=item_dim, sequence_dim=sequence_dim)
        require_positive("DMR_U2I", max_length=max_length, cmp_dim=cmp_dim)
        self.item_dim = item_dim
        self.sequence_dim = sequence_dim
        self.max_length = max_length
        self.positions = nn.Parameter(nn.init.xavier_uniform_(torch.empty(max_length, cmp_dim)))
        self.embedding = nn.Parameter(nn.init.xavier_uniform_(torch.empty(sequence_dim, cmp_dim)))
        self.z = nn.Parameter(torch.ones(cmp_dim))
        self.bias = nn.Parameter(torch.zeros(cmp_dim))
        self.dense = Dense(sequence_dim, item_dim, activation=activation)

    def forward(self, item: Tensor, sequence: Tensor, mask: Tensor | None = None) -> Tensor:
        """``[B, item_dim]`` for `item` ``[B, item_dim]``, `sequence` ``[B, T, sequence_dim]`` and `mask` ``[B, T]``."""
        require_shape("DMR_U2I", "item", item, ("B", self.item_dim))
        require_shape("DMR_U2I", "sequence", sequence, (item.shape[0], "T", self.sequence_dim))
        length = sequence.shape[1]
        if length > self.max_length:
            raise ValueError(f"DMR_U2I: sequence must have at most {self.max_length} steps, got {length}; cut it first")
        x = zero_masked("DMR_U2I", sequence, mask)
        weights = masked_softmax((self.positions[:length] + x @ self.embedding + self.bias) @ self.z, mask)
        pooled: Tensor = self.dense(torch.einsum("bt,btd->bd", weights, x))
        return pooled * item
