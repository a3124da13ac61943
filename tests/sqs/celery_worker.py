"""A Celery worker with SQS as its broker, against a running server.

WAYBILL_SQS_ENDPOINT names the server, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are a key that may send, receive and
manage queues. Prints one line per case and ends with `N passed, M failed`.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid

import cases

# Two workers are started, each of which takes seconds where the machine is busy.
WAIT_SECONDS_MAX = 120
TASKS = 50

FOLDER = tempfile.TemporaryDirectory()
os.environ["WAYBILL_CELERY_NOTES"] = os.path.join(FOLDER.name, "notes")
os.environ["WAYBILL_CELERY_QUEUE"] = f"celery-{uuid.uuid4().hex}"
LOG = os.path.join(FOLDER.name, "log")
open(os.environ["WAYBILL_CELERY_NOTES"], "w").close()

import boto3  # noqa: E402
import celery  # noqa: E402
import kombu  # noqa: E402

from celery_app import add, hold, notes  # noqa: E402

SQS = boto3.client("sqs", endpoint_url=os.environ["WAYBILL_SQS_ENDPOINT"], region_name="us-east-1")


class Worker:
    """In a process group of its own, which ends with it."""

    def __enter__(self):
        words = ["-A", "celery_app", "worker", "--concurrency", "2", "--loglevel", "info"]
        with open(LOG, "a") as log:
            here = os.path.dirname(os.path.abspath(__file__))
            command = [sys.executable, "-m", "celery", *words]
            # A worker that cannot give a message back writes it to a temporary file.
            there = {**os.environ, "TMPDIR": FOLDER.name}
            self.process = subprocess.Popen(
                command, cwd=here, env=there, stdout=log, stderr=log, start_new_session=True
            )
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        """As a crash does it: nobody says goodbye."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def wait_until(is_so):
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not is_so():
        if time.monotonic() > deadline:
            with open(LOG) as log:
                raise AssertionError(f"it did not happen; notes {notes()}; log {log.read()[-3000:]}")
        time.sleep(0.05)


def depth():
    url = SQS.get_queue_url(QueueName=os.environ["WAYBILL_CELERY_QUEUE"])["QueueUrl"]
    names = [f"ApproximateNumberOfMessages{kind}" for kind in ("", "NotVisible", "Delayed")]
    found = SQS.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return [int(found[name]) for name in names]


def every_task_runs_once():
    """With a first worker, which then dies with a task in its hands."""
    for number in range(TASKS):
        add.delay(number, number)
    with Worker() as worker:
        wait_until(lambda: len(notes()) >= TASKS and depth() == [0, 0, 0])
        assert sorted(notes()) == sorted(f"{n} + {n} = {n + n}" for n in range(TASKS)), notes()
        hold.delay()
        wait_until(lambda: "held" in notes())
        worker.kill()


def a_task_of_a_worker_that_died_comes_again_and_a_worker_ends_cleanly():
    assert notes()[TASKS:] == ["held"], notes()
    with Worker() as worker:
        wait_until(lambda: notes()[TASKS:] == ["held", "held"] and depth() == [0, 0, 0])
        # While a receive waits. From within a task it would be a race of Celery's own, which at times loses the
        # acknowledgement of the task that asks.
        worker.process.terminate()
        assert worker.process.wait(WAIT_SECONDS_MAX) == 0
    # What is sent to nobody stays.
    add.delay(1, 1)
    assert depth() == [1, 0, 0], depth()


CASES = [every_task_runs_once, a_task_of_a_worker_that_died_comes_again_and_a_worker_ends_cleanly]


if __name__ == "__main__":
    name = f"celery {celery.__version__} by kombu {kombu.__version__}"
    sys.exit(cases.run(name, CASES))
