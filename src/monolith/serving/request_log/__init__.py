"""The request log: what was asked and answered, as impressions for the joiner and as proof for ``monolith skew``.

Read `log.py` first: the front ends hand over answered requests, a thread of its own writes them, and nobody waits for
it. `records.py` says what a record is, `rolled_files.py` and `topic.py` where records go, `reading.py` reads them back.
It knows nothing of the server, which knows it. Importing it opens nothing.
"""

from __future__ import annotations

from monolith.serving.request_log.answered import AnsweredRequest
from monolith.serving.request_log.config import RequestLogConfig
from monolith.serving.request_log.log import RequestLog
from monolith.serving.request_log.reading import LoggedRequest, read_requests
from monolith.serving.request_log.sampling import is_sampled

__all__ = ["AnsweredRequest", "LoggedRequest", "RequestLog", "RequestLogConfig", "is_sampled", "read_requests"]
