"""Export: a model that leaves the training code, as graph, weights, rows and signatures.

May import `monolith.checkpoint`, `monolith.deltalog`, `monolith.publishing` and what is below them; knows no task.
`monolith.serving.export` is its public face. The files are those of ``docs/formats/export.md``.
"""

from __future__ import annotations

__all__: list[str] = []
