"""The operations that a graph of an export may have: those of ATen that dense models use and that are safe to run.

Excluded on purpose: operations whose kernels trust their arguments (sparse tensors, `segment_reduce`, `embedding_bag`,
backward operations), whose result has a size that depends on values (`nonzero`, `unique`, `item`), that return
uninitialised memory (`empty`), that draw random numbers, and that touch files or storage (`from_file`, `set_`,
`as_strided`).
"""

from __future__ import annotations

import re

from monolith.errors import InvalidArgumentError

_ELEMENTWISE = """
abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or
bitwise_right_shift bitwise_xor ceil celu clamp clamp_max clamp_min clip copysign cos cosh deg2rad digamma div divide
dropout elu eq erf erfc erfinv exp exp2 expm1 feature_dropout fix float_power floor floor_divide fmax fmin fmod frac ge
gelu glu greater greater_equal gt hardshrink hardsigmoid hardswish hardtanh heaviside hypot i0 isclose isfinite isinf
isnan isneginf isposinf ldexp le leaky_relu lerp less less_equal lgamma log log10 log1p log2 log_sigmoid logaddexp
logaddexp2 logical_and logical_not logical_or logical_xor logit lt masked_fill maximum minimum mish mul multiply
nan_to_num ne neg negative not_equal positive pow prelu rad2deg reciprocal relu relu6 remainder round rrelu rsqrt rsub
selu sgn sigmoid sign signbit silu sin sinc sinh softplus softshrink special_entr special_erf special_erfc special_exp2
special_expit special_expm1 special_gammaln special_log1p special_logit special_xlog1py special_xlogy sqrt square sub
subtract tan tanh threshold true_divide trunc where xlogy _log_softmax _prelu_kernel _softmax alpha_dropout
__and__ __or__ __xor__ __lshift__ __rshift__ native_dropout
"""
_REDUCTIONS = """
all amax amin aminmax any argmax argmin argsort count_nonzero cosine_similarity cummax cummin cumprod cumsum
kthvalue log_softmax logcumsumexp logsumexp max mean median min msort nanmean nanmedian nansum norm pairwise_distance
prod softmax sort special_log_softmax special_softmax std std_mean sum topk trace var var_mean linalg_matrix_norm
linalg_norm linalg_vector_norm mode
"""
_SHAPES = """
adjoint alias atleast_1d atleast_2d atleast_3d block_diag broadcast_tensors broadcast_to cat chunk clone column_stack
concat concatenate contiguous constant_pad_nd copy detach diag diag_embed diagonal dsplit dstack expand expand_as
flatten flip fliplr flipud hsplit hstack lift_fresh lift_fresh_copy mH mT matrix_H meshgrid moveaxis movedim narrow
numpy_T pad permute pixel_shuffle pixel_unshuffle ravel reflection_pad1d reflection_pad2d repeat replication_pad1d
replication_pad2d reshape resolve_conj resolve_neg roll rot90 row_stack select slice split split_with_sizes squeeze
stack swapaxes swapdims t tensor_split tile to transpose tril triu type_as unbind unflatten unfold unsafe_chunk
unsafe_split unsafe_split_with_sizes unsqueeze view view_as vsplit vstack _to_copy _unsafe_view
"""
_PRODUCTS = """
addbmm addmm addmv addr baddbmm bilinear bmm cdist chain_matmul cross dot einsum inner kron linalg_cross linalg_matmul
linalg_multi_dot linalg_vecdot linear matmul mm mv outer tensordot vdot _cdist_forward _euclidean_dist _trilinear
"""
_LAYERS = """
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d adaptive_max_pool2d avg_pool1d avg_pool2d batch_norm conv1d
conv2d conv_transpose1d conv_transpose2d convolution embedding group_norm gru gru_cell instance_norm
layer_norm lstm lstm_cell max_pool1d max_pool1d_with_indices max_pool2d max_pool2d_with_indices native_batch_norm
native_group_norm native_layer_norm rms_norm rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell scaled_dot_product_attention
upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d _adaptive_avg_pool2d
_fused_rms_norm _native_batch_norm_legit _native_batch_norm_legit_no_training
_scaled_dot_product_flash_attention_for_cpu
binary_cross_entropy binary_cross_entropy_with_logits cross_entropy_loss huber_loss kl_div l1_loss mse_loss
nll_loss nll_loss_forward smooth_l1_loss
"""
_INDICES = """
bucketize gather index index_add index_copy index_fill index_put index_select isin masked_scatter one_hot
repeat_interleave scatter scatter_add scatter_reduce searchsorted select_scatter slice_scatter take take_along_dim
"""
_CREATION = """
arange eye full full_like linspace logspace new_full new_ones new_zeros ones ones_like scalar_tensor tril_indices
triu_indices zeros zeros_like
"""
_IN_PLACE = """
abs_ add_ addcdiv_ addcmul_ ceil_ clamp_ clamp_max_ clamp_min_ copy_ cumsum_ detach_ div_ dropout_ elu_ eq_ exp_ fill_
floor_ ge_ gt_ hardsigmoid_ hardswish_ hardtanh_ index_add_ index_copy_ index_fill_ index_put_ le_ leaky_relu_ lerp_
log1p_ log_ logical_and_ logical_not_ logical_or_ lt_ masked_fill_ mul_ nan_to_num_ ne_ neg_ pow_ reciprocal_ relu6_
relu_ remainder_ round_ rsqrt_ scatter_ scatter_add_ scatter_reduce_ sigmoid_ silu_ sqrt_ square_ squeeze_ sub_ tanh_
threshold_ tril_ triu_ trunc_ unsqueeze_ zero_
"""
_CHECKS = """
_assert_async _assert_scalar _assert_tensor_metadata sym_constrain_range sym_constrain_range_for_size sym_numel sym_size
"""
_ATEN = frozenset(
    f"aten.{name}"
    for group in (_ELEMENTWISE, _REDUCTIONS, _SHAPES, _PRODUCTS, _LAYERS, _INDICES, _CREATION, _IN_PLACE, _CHECKS)
    for name in group.split()
)
_PYTHON = """
_operator.add _operator.and_ _operator.eq _operator.floordiv _operator.ge _operator.getitem _operator.gt _operator.le
_operator.lt _operator.mod _operator.mul _operator.ne _operator.neg _operator.or_ _operator.sub _operator.truediv
torch.sym_float torch.sym_int torch.sym_ite torch.sym_max torch.sym_min torch.sym_not torch.sym_sum math.ceil math.floor
math.trunc
"""
_OF_SIZES = frozenset(_PYTHON.split())
"""Python functions on sizes. Power is excluded: even of two small numbers it can take forever."""
_TARGET = re.compile(r"torch\.ops\.((?:aten|prims)\.[A-Za-z0-9_]{1,60})\.([A-Za-z0-9_]{1,60})")
_NAME = re.compile(r"(aten|prims)\.[A-Za-z0-9_]{1,60}")
_by_user: set[str] = set()


def allow_operations(*names: str) -> None:
    """Allows further operations in exports that this process writes and reads.

    An operation that is not in the list was not reviewed: it may read out of bounds, or allocate any amount of memory.
    Allow it only for exports that you made yourself. The server that loads the export must allow it, too.

    Args:
        names: Names of operations in torch, such as ``aten.segment_reduce``.

    Raises:
        InvalidArgumentError: a name has another form.

    >>> allow_operations("segment_reduce")
    Traceback (most recent call last):
    monolith.errors.InvalidArgumentError: ...'aten.NAME' or 'prims.NAME', got 'segment_reduce'
    """
    for name in names:
        if _NAME.fullmatch(name) is None:
            expected = "names like 'aten.NAME' or 'prims.NAME'"
            raise InvalidArgumentError(f"allow_operations: expected {expected}, got {name!r}")
    _by_user.update(names)


def user_operations() -> frozenset[str]:
    """Returns the names passed to `allow_operations`."""
    return frozenset(_by_user)


def is_allowed_operation(target: object) -> bool:
    """Returns whether a node of a graph may have this target, in torch's notation: ``torch.ops.aten.add.Tensor``."""
    if not isinstance(target, str):
        return False
    if target in _OF_SIZES:
        return True
    match = _TARGET.fullmatch(target)
    if match is None or re.fullmatch("(.*_)?out", match[2]):
        return False
    return match[1] in _ATEN or match[1] in _by_user
