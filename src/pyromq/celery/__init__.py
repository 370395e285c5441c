"""A transport of kombu, with which Celery uses RocketMQ as its broker.

Importing it registers `rocketmq://`, and `rocketmqs://` for TLS. Raises `UsageError` if gevent or eventlet has replaced
threads and sockets: the clients wait in real threads.
"""

from typing import Any

from pyromq.errors import UsageError
from pyromq.extras import packages_of

with packages_of("celery", "pyromq.celery"):
    from kombu.transport import TRANSPORT_ALIASES
    from kombu.utils.compat import detect_environment

if (environment := detect_environment()) != "default":
    raise UsageError(
        f"pyromq.celery does not work under {environment}, which replaces threads and sockets:"
        " start the worker with --pool prefork, threads or solo"
    )
for scheme in ("rocketmq", "rocketmqs"):
    TRANSPORT_ALIASES.setdefault(scheme, "pyromq.celery.kombu_transport:Transport")

try:
    from celery.signals import worker_init
except ImportError:  # kombu is used without Celery
    pass
else:

    @worker_init.connect
    def _replace_add_consumer(**signal: Any) -> None:
        from pyromq.celery import add_consumer_command  # noqa: F401  registers the command
