"""The JSON bodies of requests and answers, as declarations by subject."""

from pyromq.remoting.bodies.batches import *  # noqa: F403
from pyromq.remoting.bodies.body import *  # noqa: F403
from pyromq.remoting.bodies.clients import *  # noqa: F403
from pyromq.remoting.bodies.half_messages import *  # noqa: F403
from pyromq.remoting.bodies.offsets import *  # noqa: F403
from pyromq.remoting.bodies.queues import *  # noqa: F403
from pyromq.remoting.bodies.registration import *  # noqa: F403
from pyromq.remoting.bodies.routes import *  # noqa: F403
from pyromq.remoting.bodies.running import *  # noqa: F403
from pyromq.remoting.bodies.statistics import *  # noqa: F403
from pyromq.remoting.bodies.timers import *  # noqa: F403
from pyromq.remoting.bodies.topics import *  # noqa: F403
from pyromq.remoting.json_quirks import decode_body as decode_body
from pyromq.remoting.json_quirks import encode_body as encode_body
