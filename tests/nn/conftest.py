"""The folder's own modules, importable under the names that mypy knows, and the engines that models run on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest

from monolith.tables import CudaStore, LocalStore, TableConfig
from monolith.tables.store import Store
from monolith.testing import ReferenceStore

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from contracts.device_store import DEVICE, DeviceStore

StoreFactory: TypeAlias = Callable[[Mapping[str, TableConfig]], Store]


ENGINES: dict[str, StoreFactory] = {
    "local": LocalStore,
    "reference": ReferenceStore,
    "cuda on the processor": partial(CudaStore, device="cpu"),
    **dict.fromkeys(DEVICE, DeviceStore),
}


@pytest.fixture(params=list(ENGINES.values()), ids=list(ENGINES))
def make_store(request: pytest.FixtureRequest) -> StoreFactory:
    """Builds a store of an engine; the second one knows nothing of the core.

    The third one pools by kernels of a device, as on a GPU; rows of the last one are on a device without kernels.
    """
    factory: StoreFactory = request.param
    return factory
