"""The Celery application of the workers in tests: `celery -A tests.celery.worker_app worker`."""

import os
import time
from pathlib import Path

import pyromq.celery  # noqa: F401  registers rocketmq://
from celery import Celery

app = Celery("worker_app", broker=os.environ.get("BROKER"), backend="rpc://")
app.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    broker_transport_options={"visibility_timeout": 1},
)


@app.task
def add(x, y):
    return x + y


@app.task
def note(path, number):
    time.sleep(0.02)
    with Path(path).open("a") as file:
        file.write(f"{number}\n")
