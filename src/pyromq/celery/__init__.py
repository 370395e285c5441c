"""A transport of kombu, with which Celery uses RocketMQ as its broker. Importing it registers `rocketmq://`."""

from kombu.transport import TRANSPORT_ALIASES

TRANSPORT_ALIASES.setdefault("rocketmq", "pyromq.celery.kombu_transport:Transport")
