"""The request log: requests and answers, as impressions for the joiner and as input of ``monolith skew``.

Read `log.py` first: the front ends submit answered requests, and a background thread writes them; no request waits for
it. `records.py` defines a record, `rolled_files.py` and `topic.py` write records, `reading.py` reads them. It does not
depend on the server. Importing it opens no resources.
"""

from __future__ import annotations

from monolith.serving.request_log.answered import AnsweredRequest
from monolith.serving.request_log.config import RequestLogConfig
from monolith.serving.request_log.log import RequestLog
from monolith.serving.request_log.reading import LoggedRequest, read_requests
from monolith.serving.request_log.sampling import is_sampled

__all__ = ["AnsweredRequest", "LoggedRequest", "RequestLog", "RequestLogConfig", "is_sampled", "read_requests"]
