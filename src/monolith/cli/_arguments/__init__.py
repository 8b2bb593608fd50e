"""What commands take, apart from what they do: a module here describes the command of its name.

Help and complaints are answered from here at once: nothing of torch is imported, nor what imports it.
"""

from __future__ import annotations

__all__: list[str] = []
