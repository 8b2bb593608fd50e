"""Attention over sequences, with masks: what is masked has no weight, and a sequence of nothing gives zeros.

A mask is ``[B, T]``, True where the step counts. Values and gradients of masked steps never reach the result, even if
they are NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from monolith.nn._arguments import require_mask, require_positive, require_shape


def masked_softmax(logits: Tensor, mask: Tensor | None = None, dim: int = -1) -> Tensor:
    """``exp(z_t) / sum over unmasked s of exp(z_s)`` where the mask is True, 0 elsewhere; all 0 where nothing counts.

    Args:
        logits: Any shape.
        mask: Broadcasts to `logits`; True where the element counts. None: everything counts.
        dim: The dim that sums to 1.
    """
    if mask is None:
        return torch.softmax(logits, dim=dim)
    counts = mask.bool()
    lowest = torch.finfo(logits.dtype).min
    return torch.softmax(torch.where(counts, logits, lowest), dim=dim).masked_fill(~counts, 0.0)


def zero_masked(subject: str, sequence: Tensor, mask: Tensor | None) -> Tensor:
    """`sequence` ``[B, T, d]`` with zeros where `mask` ``[B, T]`` is False; `subject` names the caller."""
    if mask is None:
        return sequence
    require_mask(subject, mask, sequence.shape[:2])
    return sequence.masked_fill(~mask.bool().unsqueeze(2), 0.0)


class AttentionPooling(nn.Module):
    """A sequence as one vector, weighted by learned importance: ``[B, d]``.

    ``a_t = softmax over t of v . tanh(x_t W + b)``; ``y = sum over t of a_t x_t``.

    Reference: Yang et al., Hierarchical Attention Networks, NAACL 2016.

    Args:
        dim: d.
        attention_dim: Size of the hidden layer; `dim` by default.
    """

    def __init__(self, dim: int, attention_dim: int | None = None) -> None:
        super().__init__()
        require_positive("AttentionPooling", dim=dim, attention_dim=attention_dim or dim)
        self.dim = dim
        self.hidden = nn.Linear(dim, attention_dim or dim)
        self.score = nn.Linear(attention_dim or dim, 1, bias=False)
        nn.init.xavier_uniform_(self.hidden.weight)
        nn.init.zeros_(self.hidden.bias)
        nn.init.xavier_uniform_(self.score.weight)

    def forward(self, sequence: Tensor, mask: Tensor | None = None) -> Tensor:
        """``[B, d]`` for `sequence` ``[B, T, d]`` and `mask` ``[B, T]``."""
        require_shape("AttentionPooling", "sequence", sequence, ("B", "T", self.dim))
        x = zero_masked("AttentionPooling", sequence, mask)
        weights = masked_softmax(self.score(torch.tanh(self.hidden(x))).squeeze(2), mask)
        return torch.einsum("bt,btd->bd", weights, x)


class MultiHeadAttention(nn.Module):
    """Scaled dot-product attention of several heads.

    For head h with ``Q = x W_q, K = c W_k, V = c W_v`` cut into heads of ``e = dim / num_heads``:
    ``Y_h = softmax(Q_h K_h^T / sqrt(e)) V_h``; the heads are concatenated and multiplied by W_o. No biases.

    Reference: Vaswani et al., arXiv:1706.03762.

    Args:
        dim: Size of queries, keys and result.
        num_heads: A divisor of `dim`.
        is_causal: Whether step t may attend to steps 0..t only; then queries and context have the same T.
    """

    def __init__(self, dim: int, num_heads: int, *, is_causal: bool = False) -> None:
        super().__init__()
        require_positive("MultiHeadAttention", dim=dim, num_heads=num_heads)
        if dim % num_heads:
            raise ValueError(f"MultiHeadAttention: num_heads must divide dim {dim}, got {num_heads}")
        self.dim = dim
        self.num_heads = num_heads
        self.is_causal = is_causal
        self.query = nn.Linear(dim, dim, bias=False)
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim, bias=False)
        self.output = nn.Linear(dim, dim, bias=False)
        for linear in (self.query, self.key, self.value, self.output):
            nn.init.xavier_uniform_(linear.weight)

    def forward(self, queries: Tensor, context: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Returns the attention of each query over the context.

        Args:
            queries: ``[B, Q, dim]``.
            context: ``[B, T, dim]``. None: self-attention, the queries are the context.
            mask: ``[B, T]``, True where a step of the context counts.

        Returns:
            ``[B, Q, dim]``; zeros for a query that may attend to nothing and, in self-attention, for masked steps.
        """
        is_self_attention = context is None
        context = queries if context is None else context
        require_shape("MultiHeadAttention", "queries", queries, ("B", "Q", self.dim))
        require_shape("MultiHeadAttention", "context", context, (queries.shape[0], "T", self.dim))
        context = zero_masked("MultiHeadAttention", context, mask)
        queries = context if is_self_attention else queries
        q, k, v = (
            linear(x).unflatten(2, (self.num_heads, -1)).transpose(1, 2)
            for linear, x in ((self.query, queries), (self.key, context), (self.value, context))
        )
        logits = q @ k.transpose(2, 3) * (self.dim // self.num_heads) ** -0.5
        heads = masked_softmax(logits, self._allowed(logits, mask)) @ v
        result: Tensor = self.output(heads.transpose(1, 2).flatten(2))
        return zero_masked("MultiHeadAttention", result, mask) if is_self_attention else result

    def _allowed(self, logits: Tensor, mask: Tensor | None) -> Tensor | None:
        allowed = None if mask is None else mask.bool()[:, None, None, :]
        if not self.is_causal:
            return allowed
        num_queries, num_steps = logits.shape[2:]
        if num_queries != num_steps:
            raise ValueError(
                f"MultiHeadAttention: is_causal needs as many queries as steps, got {num_queries} and {num_steps}"
            )
        past = torch.ones(num_steps, num_steps, dtype=torch.bool, device=logits.device).tril()
        return past if allowed is None else allowed & past


def require_query_and_keys(subject: str, query: Tensor, keys: Tensor, dim: int) -> None:
    """Raises if a query is not ``[B, dim]`` or keys are not ``[B, T, dim]``; `subject` names the caller."""
    require_shape(subject, "query", query, ("B", dim))
    require_shape(subject, "keys", keys, (query.shape[0], "T", dim))
