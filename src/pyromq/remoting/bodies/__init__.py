"""The JSON bodies of requests and responses, by subject."""

from pyromq.remoting.bodies.body import *  # noqa: F403
from pyromq.remoting.bodies.client_bodies import *  # noqa: F403
from pyromq.remoting.bodies.pop_bodies import *  # noqa: F403
from pyromq.remoting.bodies.queue_bodies import *  # noqa: F403
from pyromq.remoting.bodies.registration_bodies import *  # noqa: F403
from pyromq.remoting.bodies.replica_bodies import *  # noqa: F403
from pyromq.remoting.bodies.statistics_bodies import *  # noqa: F403
from pyromq.remoting.bodies.topic_bodies import *  # noqa: F403
from pyromq.remoting.bodies.transaction_bodies import *  # noqa: F403
from pyromq.remoting.json_quirks import ANSWER as ANSWER
from pyromq.remoting.json_quirks import ATTEMPTS as ATTEMPTS
from pyromq.remoting.json_quirks import FILE as FILE
from pyromq.remoting.json_quirks import REGISTRATION as REGISTRATION
from pyromq.remoting.json_quirks import REQUEST as REQUEST
from pyromq.remoting.json_quirks import body_pieces as body_pieces
from pyromq.remoting.json_quirks import decode_body as decode_body
from pyromq.remoting.json_quirks import encode_body as encode_body
