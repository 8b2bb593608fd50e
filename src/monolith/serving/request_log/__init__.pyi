from .log import RequestLog as RequestLog
from .log import RequestLogConfig as RequestLogConfig
from .log import is_sampled as is_sampled
from .reading import LoggedRequest as LoggedRequest
from .reading import read_requests as read_requests
from .records import AnsweredRequest as AnsweredRequest
