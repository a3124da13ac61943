"""The tasks of `celery_worker.py`, as a worker and whoever sends to it load them."""

import os
import time

import cases  # noqa: F401: before boto3, which looks at the environment
from celery import Celery

NOTES = os.environ["WAYBILL_CELERY_NOTES"]
# A worker that is gone gives its message back after this long; one that is slow must be done before.
VISIBILITY_SECONDS = 8
# Far beyond the life of a worker that is to be killed while it holds a message.
HOLD_SECONDS = 300

# The keys come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
app = Celery("cases", broker=os.environ["WAYBILL_SQS_ENDPOINT"].replace("http://", "sqs://"))
app.conf.broker_transport_options = {
    "region": "us-east-1",
    "is_secure": False,
    "visibility_timeout": VISIBILITY_SECONDS,
    "wait_time_seconds": 5,
    "polling_interval": 0,
}
app.conf.task_default_queue = os.environ["WAYBILL_CELERY_QUEUE"]
app.conf.task_ignore_result = True
# A message is deleted when its task is done, so that it survives the worker.
app.conf.task_acks_late = True
app.conf.broker_connection_retry_on_startup = True


def note(text):
    """One write, so that notes of several processes stay apart."""
    with open(NOTES, "a") as file:
        file.write(f"{text}\n")


def notes():
    with open(NOTES) as file:
        return file.read().split("\n")[:-1]


@app.task
def add(one, other):
    note(f"{one} + {other} = {one + other}")


@app.task
def hold():
    is_first = "held" not in notes()
    note("held")
    if is_first:
        time.sleep(HOLD_SECONDS)
