"""Environment variables of ByteDance Monolith without effect here; ``docs/options.md`` also lists those that work."""

from __future__ import annotations

from typing import Final

from monolith.train.compat import reasons

__all__ = ["REFUSED_VARIABLES"]

REFUSED_VARIABLES: Final[dict[str, str]] = {
    "MONOLITH_WITH_OPTIMIZED_HOROVOD": reasons.EXCHANGE,
    "MONOLITH_WITH_HOROVOD_FID_G2G": reasons.EXCHANGE,
    "MONOLITH_WITH_HOROVOD_FWD_G2G": reasons.EXCHANGE,
    "MONOLITH_WITH_HOROVOD_BWD_G2G": reasons.EXCHANGE,
    "MONOLITH_WITH_BYTEPS_FID": reasons.EXCHANGE,
    "MONOLITH_WITH_BYTEPS_FWD": reasons.EXCHANGE,
    "MONOLITH_WITH_BYTEPS_BWD": reasons.EXCHANGE,
    "MONOLITH_WITH_BYTEPS_BWD_CAST": reasons.EXCHANGE,
    "MONOLITH_WITH_BYTEPS_BWD_FAKE_CAST": reasons.EXCHANGE,
    "MONOLITH_WITH_BYTEPS_FWD_GDR": reasons.EXCHANGE,
    "MONOLITH_WITH_BYTEPS_BWD_GDR": reasons.EXCHANGE,
    "MONOLITH_WITH_BYTEPS_FWD_GDR_G2G": reasons.EXCHANGE,
    "MONOLITH_WITH_BYTEPS_BWD_GDR_G2G": reasons.EXCHANGE,
    "MONOLITH_WITH_BYTEPS_ALLREDUCE": reasons.EXCHANGE,
    "MONOLITH_GPU_FEATURE_FACTORY_FUSION_LEVEL": "pooling is always one pass",
    "MONOLITH_BENCHMARK_BPS": reasons.EXCHANGE,
    "MONOLITH_BENCHMARK_ITERS": reasons.EXCHANGE,
    "MONOLITH_BENCHMARK_BPS_AR_LEN": reasons.EXCHANGE,
    "MONOLITH_BENCHMARK_BPS_A2A_LEN": reasons.EXCHANGE,
    "MONOLITH_FORCE_GPU_COMPATIBLE": reasons.TENSORFLOW,
}
"""Variable of the environment -> why it is refused when it is set."""
