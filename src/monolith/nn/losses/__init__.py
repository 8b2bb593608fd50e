"""Losses of recommender models: clicks, retrieval, ranking.

May import: torch, `monolith.nn.layers`. Start with `sigmoid.py` for clicks, `in_batch.py` for two towers,
`ranking.py` for lists. Every loss is to be minimised and documents what its ``reduction`` averages over; the default is
the mean, so that learning rate and clipping do not depend on the batch size. A batch of nothing has loss 0.
"""

from __future__ import annotations

from monolith.nn.losses._reduction import Reduction
from monolith.nn.losses.in_batch import batch_softmax_loss, in_batch_logits, inbatch_auc_loss
from monolith.nn.losses.lambda_weight import (
    DCGLambdaWeight,
    IdentityLambdaWeight,
    LambdaWeight,
    ListMLELambdaWeight,
    PrecisionLambdaWeight,
)
from monolith.nn.losses.ranking import (
    RANKING_LOSSES,
    RankingLoss,
    RankLists,
    approx_ndcg_loss,
    group_into_lists,
    list_mle_loss,
    mean_squared_loss,
    pairwise_hinge_loss,
    pairwise_logistic_loss,
    pairwise_soft_zero_one_loss,
    sigmoid_cross_entropy_loss,
    softmax_loss,
)
from monolith.nn.losses.sigmoid import (
    LossAndPrediction,
    SampleRate,
    get_sigmoid_loss_and_pred,
    get_softmax_loss_and_pred,
)

__all__ = [
    "DCGLambdaWeight",
    "IdentityLambdaWeight",
    "LambdaWeight",
    "ListMLELambdaWeight",
    "LossAndPrediction",
    "PrecisionLambdaWeight",
    "RANKING_LOSSES",
    "RankLists",
    "RankingLoss",
    "Reduction",
    "SampleRate",
    "approx_ndcg_loss",
    "batch_softmax_loss",
    "get_sigmoid_loss_and_pred",
    "get_softmax_loss_and_pred",
    "group_into_lists",
    "in_batch_logits",
    "inbatch_auc_loss",
    "list_mle_loss",
    "mean_squared_loss",
    "pairwise_hinge_loss",
    "pairwise_logistic_loss",
    "pairwise_soft_zero_one_loss",
    "sigmoid_cross_entropy_loss",
    "softmax_loss",
]
