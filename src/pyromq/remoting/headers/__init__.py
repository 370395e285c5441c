"""The headers of every request and response, by subject. Importing this package registers all of them."""

from pyromq.remoting.headers.brokers import *  # noqa: F403  # noqa: F403
from pyromq.remoting.headers.clients import *  # noqa: F403
from pyromq.remoting.headers.messages import *  # noqa: F403  # noqa: F403
from pyromq.remoting.headers.names import *  # noqa: F403
from pyromq.remoting.headers.offsets import *  # noqa: F403
from pyromq.remoting.headers.queries import *  # noqa: F403
from pyromq.remoting.headers.timers import *  # noqa: F403
from pyromq.remoting.headers.topics import *  # noqa: F403
from pyromq.remoting.headers.transactions import *  # noqa: F403
