"""How an interest developed: recurrence over the history, steered by the candidate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Tensor, nn

from monolith.nn._arguments import require_choice, require_mask, require_positive, require_shape
from monolith.nn.layers.activations import activation_layer
from monolith.nn.layers.attention import masked_softmax

if TYPE_CHECKING:
    from monolith.nn.layers.activations import Activation


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
