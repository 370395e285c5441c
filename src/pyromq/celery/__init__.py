"""A transport of kombu, with which Celery uses RocketMQ as its broker.

Importing it registers `rocketmq://`, and `rocketmqs://` for TLS.
"""

from kombu.transport import TRANSPORT_ALIASES

for scheme in ("rocketmq", "rocketmqs"):
    TRANSPORT_ALIASES.setdefault(scheme, "pyromq.celery.kombu_transport:Transport")
