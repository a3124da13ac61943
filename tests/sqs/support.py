"""What the cases by boto3 share: the client, queues of their own, how an answer is judged.

WAYBILL_SQS_ENDPOINT names the server, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are a key that may send, receive and
manage queues. WAYBILL_SQS_PROTOCOL is the protocol that this boto3 must be found to speak: `json`, or `query` for a
release from before November 2023.
"""

import hashlib
import json
import os
import struct
import uuid
from datetime import datetime, timedelta, timezone
from urllib.parse import urlencode

import cases  # noqa: F401: before boto3, which looks at the environment
import boto3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from botocore.httpsession import URLLib3Session

ENDPOINT = os.environ["WAYBILL_SQS_ENDPOINT"].rstrip("/")
KEY = os.environ["AWS_ACCESS_KEY_ID"]
SECRET = os.environ["AWS_SECRET_ACCESS_KEY"]
PROTOCOL = os.environ["WAYBILL_SQS_PROTOCOL"]
REGION = os.environ.get("AWS_DEFAULT_REGION", "us-east-1")

# A shared machine may stand still for a while; a case that hangs must end all the same.
READ_SECONDS_MAX = 60
# What SQS lets a message have, with its attributes.
MESSAGE_BYTES_MAX = 1 << 20



def client(key=KEY, secret=SECRET):
    """Nothing is tried twice: a second try would hide what the first one was answered."""
    config = Config(retries={"total_max_attempts": 1}, read_timeout=READ_SECONDS_MAX, connect_timeout=10)
    return boto3.client(
        "sqs",
        endpoint_url=ENDPOINT,
        region_name=REGION,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=config,
    )


SQS = client()
NO_QUEUE = "AWS.SimpleQueueService.NonExistentQueue"


def new_queue(**attributes):
    return SQS.create_queue(QueueName=f"case-{uuid.uuid4().hex}", Attributes=attributes)["QueueUrl"]


def new_fifo_queue(**attributes):
    """Bodies tell duplicates, so that no case needs ids that is not about them."""
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true", "VisibilityTimeout": "600", **attributes}
    return SQS.create_queue(QueueName=f"case-{uuid.uuid4().hex}.fifo", Attributes=attributes)["QueueUrl"]


def arn_of(url):
    return SQS.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]


def depth(url):
    """Visible, in flight, delayed."""
    names = [f"ApproximateNumberOfMessages{kind}" for kind in ("", "NotVisible", "Delayed")]
    found = SQS.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return [int(found[name]) for name in names]


def receive(url, **more):
    """Messages of one receive; with a wait, so that a slow machine is no failure."""
    asked = {"WaitTimeSeconds": 20, "MaxNumberOfMessages": 10, **more}
    return SQS.receive_message(QueueUrl=url, **asked).get("Messages", [])


def refused(call, **arguments):
    try:
        answer = call(**arguments)
    except ClientError as error:
        return error
    raise AssertionError(f"this was not refused: {answer}")


def is_refused_as(error, code, status):
    found = (error.response["Error"]["Code"], error.response["ResponseMetadata"]["HTTPStatusCode"])
    assert found == (code, status), error.response
    assert error.response["Error"]["Message"], error.response


def md5(text):
    return hashlib.md5(text.encode()).hexdigest()


def md5_of_attributes(attributes):
    """As SQS computes it: name, type and value of each, with their lengths before them."""
    digest = hashlib.md5()

    def part(data):
        digest.update(struct.pack(">I", len(data)) + data)

    for name in sorted(attributes):
        value = attributes[name]
        part(name.encode())
        part(value["DataType"].encode())
        if "BinaryValue" in value:
            digest.update(b"\x02")
            part(value["BinaryValue"])
        else:
            digest.update(b"\x01")
            part(value["StringValue"].encode())
    return digest.hexdigest()


def form(**parameters):
    headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
    return headers, urlencode({"Version": "2012-11-05", **parameters})


def by_hand(action, members, queue=None, body=None):
    """A request in this protocol that no SDK would make; `body` stands in the place of what the members would be."""
    if PROTOCOL == "json":
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
        data = json.dumps(members)
    else:
        headers, data = form(Action=action, **members)
    return AWSRequest("POST", queue or f"{ENDPOINT}/", headers=headers, data=data if body is None else body)


def signed(request, shift=timedelta(0), service="sqs", region=REGION, kind=SigV4Auth, **more):
    """By a signer of botocore whose clock is wrong by `shift`."""

    class Shifted(kind):
        def _modify_request_before_signing(self, request):
            now = datetime.now(timezone.utc) + shift
            request.context["timestamp"] = now.strftime("%Y%m%dT%H%M%SZ")
            super()._modify_request_before_signing(request)

    Shifted(Credentials(KEY, SECRET), service, region, **more).add_auth(request)
    return request


def raw(request):
    """Status, headers and text of the answer to a request made by hand."""
    answer = URLLib3Session(timeout=READ_SECONDS_MAX).send(request.prepare())
    return answer.status_code, answer.headers, answer.content.decode()


def code_of(text):
    """What the answer calls the error: the shape in JSON, the code in XML."""
    if PROTOCOL == "json":
        return json.loads(text)["__type"].removeprefix("com.amazonaws.sqs#")
    return text.partition("<Code>")[2].partition("</Code>")[0]
