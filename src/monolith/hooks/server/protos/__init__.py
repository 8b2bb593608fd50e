"""Messages of the controller service, made from protos/controller by scripts/update-protos."""

from __future__ import annotations

__all__: list[str] = []
