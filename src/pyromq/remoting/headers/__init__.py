"""The headers of every request and response, by subject. Importing this package registers all of them."""

from pyromq.remoting.headers.broker_headers import *  # noqa: F403
from pyromq.remoting.headers.client_headers import *  # noqa: F403
from pyromq.remoting.headers.message_headers import *  # noqa: F403
from pyromq.remoting.headers.name_server_headers import *  # noqa: F403
from pyromq.remoting.headers.offset_headers import *  # noqa: F403
from pyromq.remoting.headers.pop_headers import *  # noqa: F403
from pyromq.remoting.headers.replica_headers import *  # noqa: F403
from pyromq.remoting.headers.transaction_headers import *  # noqa: F403
