"""SQS by boto3, which knows nothing of Waybill, against a running server.

WAYBILL_SQS_ENDPOINT names the server, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are a key that may send, receive and
manage queues. WAYBILL_SQS_PROTOCOL is the protocol that this boto3 must be found to speak: `json`, or `query` for a
release from before November 2023. Prints one line per case and ends with `N passed, M failed`.
"""

import hashlib
import json
import os
import struct
import sys
import threading
import time
import traceback
import uuid
from datetime import datetime, timedelta, timezone
from urllib.parse import urlencode

# What lies around on the machine is no part of the test.
for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
    os.environ[name] = os.devnull
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS"):
    os.environ.pop(name, None)

import boto3  # noqa: E402
import botocore  # noqa: E402
from botocore.auth import SigV4Auth, SigV4QueryAuth  # noqa: E402
from botocore.awsrequest import AWSRequest  # noqa: E402
from botocore.config import Config  # noqa: E402
from botocore.credentials import Credentials  # noqa: E402
from botocore.exceptions import ClientError  # noqa: E402
from botocore.httpsession import URLLib3Session  # noqa: E402

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


def the_protocol_is_the_one_that_is_meant():
    found = SQS.meta.service_model.metadata["protocol"]
    assert found == PROTOCOL, f"botocore {botocore.__version__} speaks {found}"


def a_queue_is_created_and_found():
    name = f"case-{uuid.uuid4().hex}"
    made = SQS.create_queue(QueueName=name, Attributes={"DelaySeconds": "0"}, tags={"team": "a & b"})
    assert made["QueueUrl"].startswith(ENDPOINT) and made["QueueUrl"].endswith(f"/{name}"), made
    assert made["ResponseMetadata"]["RequestId"], made
    assert SQS.get_queue_url(QueueName=name)["QueueUrl"] == made["QueueUrl"]
    again = SQS.create_queue(QueueName=name)
    assert again["QueueUrl"] == made["QueueUrl"], again


def a_queue_with_other_attributes_is_a_conflict():
    name = new_queue(VisibilityTimeout="5").rsplit("/", 1)[1]
    error = refused(SQS.create_queue, QueueName=name, Attributes={"VisibilityTimeout": "6"})
    assert isinstance(error, SQS.exceptions.QueueNameExists), error
    is_refused_as(error, "QueueAlreadyExists", 400)


def a_message_with_attributes_makes_the_round():
    url = new_queue()
    attributes = {
        "text": {"DataType": "String", "StringValue": "grüße <&>"},
        "number": {"DataType": "Number.int", "StringValue": "-42.5"},
        "bytes": {"DataType": "Binary", "BinaryValue": bytes(range(256))},
    }
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988-bd862e3fe1be46a994272793"}}
    sent = SQS.send_message(
        QueueUrl=url, MessageBody="hello", MessageAttributes=attributes, MessageSystemAttributes=trace
    )
    assert sent["MD5OfMessageBody"] == "5d41402abc4b2a76b9719d911017c592", sent
    assert sent["MD5OfMessageAttributes"] == md5_of_attributes(attributes), sent
    assert sent["MD5OfMessageSystemAttributes"] == md5_of_attributes(trace), sent
    assert str(uuid.UUID(sent["MessageId"])) == sent["MessageId"], sent

    [message] = receive(url, AttributeNames=["All"], MessageAttributeNames=["All"])
    assert (message["MessageId"], message["Body"]) == (sent["MessageId"], "hello"), message
    assert message["MD5OfBody"] == sent["MD5OfMessageBody"], message
    assert message["MessageAttributes"] == attributes, message["MessageAttributes"]
    assert message["MD5OfMessageAttributes"] == md5_of_attributes(attributes), message
    system = message["Attributes"]
    assert system["ApproximateReceiveCount"] == "1" and system["SentTimestamp"].isdigit(), system
    assert system["AWSTraceHeader"] == trace["AWSTraceHeader"]["StringValue"], system
    SQS.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


def only_what_is_asked_for_comes_with_a_message():
    url = new_queue()
    attributes = {name: {"DataType": "String", "StringValue": name} for name in ("a.x", "a.y", "b")}
    sent = SQS.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=attributes)
    [message] = receive(url, VisibilityTimeout=0)
    assert not {"Attributes", "MessageAttributes", "MD5OfMessageAttributes"} & set(message), message
    [message] = receive(url, VisibilityTimeout=0, MessageAttributeNames=["a.*"], AttributeNames=["SenderId"])
    part = {name: attributes[name] for name in ("a.x", "a.y")}
    assert message["MessageAttributes"] == part, message
    assert message["MD5OfMessageAttributes"] == md5_of_attributes(part), message
    assert list(message["Attributes"]) == ["SenderId"], message
    assert message["MessageId"] == sent["MessageId"], message


def a_plain_send_has_no_digest_of_attributes():
    sent = SQS.send_message(QueueUrl=new_queue(), MessageBody="x")
    assert "MD5OfMessageAttributes" not in sent and "MD5OfMessageSystemAttributes" not in sent, sent


def bodies_come_back_as_they_were():
    url = new_queue()
    bodies = [
        "<a href=\"x\">&amp;</a> ]]> 'quoted'",
        "tab\tline\nreturn\r\nend\r",
        " spaces around and + signs %41 ",
        "é ü 日本 😀 \u0085 \ufffd \ud7ff \ue000",
        '{"json": "\\u0000", "list": [1, 2]}',
        "x",
        "é<" * (MESSAGE_BYTES_MAX // 3),
    ]
    for body in bodies:
        sent = SQS.send_message(QueueUrl=url, MessageBody=body)
        assert sent["MD5OfMessageBody"] == md5(body), body[:80]
        [message] = receive(url)
        assert message["Body"] == body, (body[:80], message["Body"][:80])
        assert message["MD5OfBody"] == md5(body), body[:80]
        SQS.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


def an_empty_receive_has_no_messages():
    url = new_queue()
    assert SQS.receive_message(QueueUrl=url).get("Messages", []) == []
    began = time.monotonic()
    assert receive(url, WaitTimeSeconds=2) == []
    waited = time.monotonic() - began
    assert 1.5 < waited < 20, f"a receive that waits for 2 s came back after {waited:.1f} s"


def a_receive_that_waits_is_woken_by_a_send():
    url = new_queue()
    sender = client()

    def send():
        time.sleep(1)
        sender.send_message(QueueUrl=url, MessageBody="late")

    thread = threading.Thread(target=send)
    began = time.monotonic()
    thread.start()
    messages = receive(url, WaitTimeSeconds=20)
    waited = time.monotonic() - began
    thread.join()
    assert [message["Body"] for message in messages] == ["late"], messages
    assert 0.9 < waited < 15, f"woken after {waited:.1f} s"


def the_wait_of_the_queue_holds_where_none_is_named():
    url = new_queue(ReceiveMessageWaitTimeSeconds="2")
    began = time.monotonic()
    assert "Messages" not in SQS.receive_message(QueueUrl=url)
    assert time.monotonic() - began > 1.5
    began = time.monotonic()
    assert "Messages" not in SQS.receive_message(QueueUrl=url, WaitTimeSeconds=0)
    assert time.monotonic() - began < 1.5


def a_message_comes_again_when_its_visibility_ends():
    url = new_queue()
    SQS.send_message(QueueUrl=url, MessageBody="x")
    [first] = receive(url, VisibilityTimeout=2)
    assert receive(url, WaitTimeSeconds=0) == []
    [second] = receive(url, AttributeNames=["ApproximateReceiveCount"])
    assert second["Attributes"]["ApproximateReceiveCount"] == "2", second
    assert second["ReceiptHandle"] != first["ReceiptHandle"]


def a_delayed_message_comes_when_it_is_due():
    url = new_queue()
    SQS.send_message(QueueUrl=url, MessageBody="x", DelaySeconds=2)
    assert receive(url, WaitTimeSeconds=0) == []
    began = time.monotonic()
    assert len(receive(url)) == 1
    assert time.monotonic() - began > 0.5


def a_delete_may_be_repeated_and_an_old_handle_deletes_nothing():
    url = new_queue()
    SQS.send_message(QueueUrl=url, MessageBody="x")
    [old] = receive(url, VisibilityTimeout=0)
    [latest] = receive(url, VisibilityTimeout=0)
    SQS.delete_message(QueueUrl=url, ReceiptHandle=old["ReceiptHandle"])
    [latest] = receive(url, VisibilityTimeout=0)
    for _ in range(2):
        SQS.delete_message(QueueUrl=url, ReceiptHandle=latest["ReceiptHandle"])
    assert receive(url, WaitTimeSeconds=0) == []


def a_handle_that_is_none_is_refused():
    url = new_queue()
    error = refused(SQS.delete_message, QueueUrl=url, ReceiptHandle="nonsense")
    assert isinstance(error, SQS.exceptions.ReceiptHandleIsInvalid), error
    is_refused_as(error, "ReceiptHandleIsInvalid", 404)


def a_queue_that_is_none_is_refused_by_its_class():
    url = new_queue() + "-not"
    calls = [
        (SQS.get_queue_url, {"QueueName": url.rsplit("/", 1)[1]}),
        (SQS.send_message, {"QueueUrl": url, "MessageBody": "x"}),
        (SQS.receive_message, {"QueueUrl": url}),
        (SQS.delete_message, {"QueueUrl": url, "ReceiptHandle": "x"}),
    ]
    for call, arguments in calls:
        error = refused(call, **arguments)
        assert isinstance(error, SQS.exceptions.QueueDoesNotExist), error
        is_refused_as(error, "AWS.SimpleQueueService.NonExistentQueue", 400)


def what_is_wrong_with_a_request_is_told_by_class_or_code():
    url = new_queue()
    error = refused(SQS.create_queue, QueueName=f"case-{uuid.uuid4().hex}", Attributes={"Colour": "blue"})
    assert isinstance(error, SQS.exceptions.InvalidAttributeName), error
    error = refused(SQS.create_queue, QueueName=f"case-{uuid.uuid4().hex}", Attributes={"DelaySeconds": "901"})
    is_refused_as(error, "InvalidAttributeValue", 400)
    error = refused(SQS.send_message, QueueUrl=url, MessageBody="\x01")
    assert isinstance(error, SQS.exceptions.InvalidMessageContents), error
    is_refused_as(error, "InvalidMessageContents", 400)
    for bad in ({"MaxNumberOfMessages": 0}, {"MaxNumberOfMessages": 11}, {"WaitTimeSeconds": 21}):
        is_refused_as(refused(SQS.receive_message, QueueUrl=url, **bad), "InvalidParameterValue", 400)
    is_refused_as(refused(SQS.send_message, QueueUrl=url, MessageBody="x", DelaySeconds=901), "InvalidParameterValue", 400)
    is_refused_as(refused(SQS.create_queue, QueueName="no spaces"), "InvalidParameterValue", 400)


def a_wrong_secret_is_refused():
    other = "a" if SECRET[-1] != "a" else "b"
    error = refused(client(secret=SECRET[:-1] + other).create_queue, QueueName="case")
    is_refused_as(error, "SignatureDoesNotMatch", 403)


def an_unknown_key_is_refused():
    error = refused(client(key="AKIAIOSFODNN7EXAMPLE").create_queue, QueueName="case")
    is_refused_as(error, "InvalidClientTokenId", 403)


def signing_at(kind, shift):
    """A signer of botocore whose clock is wrong by `shift`."""

    class Shifted(kind):
        def _modify_request_before_signing(self, request):
            now = datetime.now(timezone.utc) + shift
            request.context["timestamp"] = now.strftime("%Y%m%dT%H%M%SZ")
            super()._modify_request_before_signing(request)

    return Shifted


def raw(request):
    """Status, headers and text of the answer to a request made by hand."""
    answer = URLLib3Session(timeout=READ_SECONDS_MAX).send(request.prepare())
    return answer.status_code, answer.headers, answer.content.decode()


def request_by_hand(name):
    if PROTOCOL == "json":
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.GetQueueUrl"}
        return AWSRequest("POST", f"{ENDPOINT}/", headers=headers, data='{"QueueName":"%s"}' % name)
    headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
    data = f"Action=GetQueueUrl&Version=2012-11-05&QueueName={name}"
    return AWSRequest("POST", f"{ENDPOINT}/", headers=headers, data=data)


def a_clock_that_is_wrong_is_told():
    name = new_queue().rsplit("/", 1)[1]
    for minutes, expected in ((-20, 403), (20, 403), (-10, 200), (10, 200)):
        request = request_by_hand(name)
        signer = signing_at(SigV4Auth, timedelta(minutes=minutes))
        signer(Credentials(KEY, SECRET), "sqs", REGION).add_auth(request)
        status, _, text = raw(request)
        assert status == expected, (minutes, status, text)
        assert ("RequestTimeTooSkewed" in text) == (expected == 403), (minutes, text)


def no_signature_is_told():
    status, headers, text = raw(request_by_hand("case"))
    assert status == 403 and "MissingAuthenticationToken" in text, (status, text)
    wanted = {"json": "application/x-amz-json-1.0", "query": "text/xml"}[PROTOCOL]
    assert headers["Content-Type"].startswith(wanted), headers


def a_presigned_address_is_answered_with_xml_until_it_expires():
    url = new_queue()
    name = url.rsplit("/", 1)[1]
    for minutes, expected in ((0, 200), (-2, 403)):
        request = AWSRequest("GET", f"{ENDPOINT}/?Action=GetQueueUrl&Version=2012-11-05&QueueName={name}")
        signer = signing_at(SigV4QueryAuth, timedelta(minutes=minutes))
        signer(Credentials(KEY, SECRET), "sqs", REGION, expires=60).add_auth(request)
        status, headers, text = raw(request)
        assert status == expected, (minutes, status, text)
        assert headers["Content-Type"].startswith("text/xml"), headers
        assert (f"<QueueUrl>{url}</QueueUrl>" in text) == (expected == 200), text
        assert ("<Code>RequestExpired</Code>" in text) == (expected == 403), text


def a_form_to_the_address_of_a_queue_needs_no_queue_url():
    url = new_queue()
    body = "1 + 1 = 2 & é"
    form = urlencode({"Action": "SendMessage", "Version": "2012-11-05", "MessageBody": body})
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    request = AWSRequest("POST", url, headers=headers, data=form)
    SigV4Auth(Credentials(KEY, SECRET), "sqs", REGION).add_auth(request)
    status, _, text = raw(request)
    assert status == 200 and f"<MD5OfMessageBody>{md5(body)}</MD5OfMessageBody>" in text, (status, text)
    [message] = receive(url)
    assert message["Body"] == body, message


def a_batch_tells_each_entry_its_own():
    url = new_queue()
    entries = [{"Id": f"e{n}", "MessageBody": f"<{n}> & more", "DelaySeconds": 0} for n in range(10)]
    entries[3] = {"Id": "bad", "MessageBody": "\x01"} if PROTOCOL == "json" else {**entries[3], "DelaySeconds": 9000}
    sent = SQS.send_message_batch(QueueUrl=url, Entries=entries)
    assert len(sent["Successful"]) == 9 and len(sent["Failed"]) == 1, sent
    [failed] = sent["Failed"]
    assert failed["Id"] == entries[3]["Id"] and failed["SenderFault"] is True and failed["Code"], failed
    for entry in sent["Successful"]:
        body = next(one["MessageBody"] for one in entries if one["Id"] == entry["Id"])
        assert entry["MD5OfMessageBody"] == md5(body), entry
    got = []
    while len(got) < 9:
        got += receive(url)
    ids = [{"Id": f"d{n}", "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(got)]
    longer = [{**entry, "VisibilityTimeout": 600} for entry in ids]
    assert len(SQS.change_message_visibility_batch(QueueUrl=url, Entries=longer)["Successful"]) == 9
    gone = SQS.delete_message_batch(QueueUrl=url, Entries=ids + [{"Id": "none", "ReceiptHandle": "x"}])
    assert len(gone["Successful"]) == 9 and gone["Failed"][0]["Id"] == "none", gone


def a_batch_that_is_wrong_as_a_whole_does_nothing():
    url = new_queue()
    entry = {"Id": "a", "MessageBody": "m"}
    for entries, code in [
        ([], "EmptyBatchRequest"),
        ([{**entry, "Id": f"e{n}"} for n in range(11)], "TooManyEntriesInBatchRequest"),
        ([entry, entry], "BatchEntryIdsNotDistinct"),
        ([{**entry, "Id": "not an id"}], "InvalidBatchEntryId"),
    ]:
        error = refused(SQS.send_message_batch, QueueUrl=url, Entries=entries)
        is_refused_as(error, f"AWS.SimpleQueueService.{code}", 400)
        assert type(error).__name__ == code, type(error)
    large = [{"Id": f"e{n}", "MessageBody": "x" * (MESSAGE_BYTES_MAX // 2)} for n in range(3)]
    error = refused(SQS.send_message_batch, QueueUrl=url, Entries=large)
    is_refused_as(error, "AWS.SimpleQueueService.BatchRequestTooLong", 400)
    assert receive(url, WaitTimeSeconds=0) == []


def attributes_tags_and_lists():
    url = new_queue(VisibilityTimeout="7")
    name = url.rsplit("/", 1)[1]
    SQS.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "1", "Policy": '{"Version":"2012-10-17"}'})
    found = SQS.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert (found["VisibilityTimeout"], found["DelaySeconds"]) == ("7", "1"), found
    assert found["QueueArn"].endswith(f":{name}") and found["Policy"] == '{"Version":"2012-10-17"}', found
    assert "Attributes" not in SQS.get_queue_attributes(QueueUrl=url)
    error = refused(SQS.set_queue_attributes, QueueUrl=url, Attributes={"VisibilityTimeout": "9", "DelaySeconds": "901"})
    is_refused_as(error, "InvalidAttributeValue", 400)
    again = SQS.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])["Attributes"]
    assert again == {"VisibilityTimeout": "7"}, again
    SQS.tag_queue(QueueUrl=url, Tags={"a": "1", "b": "<2>"})
    SQS.untag_queue(QueueUrl=url, TagKeys=["a", "never"])
    assert SQS.list_queue_tags(QueueUrl=url)["Tags"] == {"b": "<2>"}
    assert SQS.list_queues(QueueNamePrefix=name)["QueueUrls"] == [url]
    assert "QueueUrls" not in SQS.list_queues(QueueNamePrefix=f"{name}-none")
    SQS.add_permission(QueueUrl=url, Label="l", AWSAccountIds=["123456789012"], Actions=["SendMessage"])
    SQS.remove_permission(QueueUrl=url, Label="l")


def depth_is_counted_and_a_purge_empties():
    url = new_queue()
    names = [f"ApproximateNumberOfMessages{kind}" for kind in ("", "NotVisible", "Delayed")]

    def depth():
        found = SQS.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return [int(found[name]) for name in names]

    for _ in range(3):
        SQS.send_message(QueueUrl=url, MessageBody="m")
    SQS.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=600)
    [taken] = receive(url, MaxNumberOfMessages=1)
    assert depth() == [2, 1, 1], depth()
    SQS.purge_queue(QueueUrl=url)
    assert depth() == [0, 0, 0], depth()
    is_refused_as(refused(SQS.purge_queue, QueueUrl=url), "AWS.SimpleQueueService.PurgeQueueInProgress", 403)
    error = refused(SQS.delete_message, QueueUrl=url, ReceiptHandle=taken["ReceiptHandle"])
    is_refused_as(error, "ReceiptHandleIsInvalid", 404)
    SQS.delete_queue(QueueUrl=url)
    is_refused_as(refused(SQS.send_message, QueueUrl=url, MessageBody="m"), NO_QUEUE, 400)


def visibility_is_changed_by_its_holder():
    url = new_queue()
    SQS.send_message(QueueUrl=url, MessageBody="m")
    [message] = receive(url)
    handle = {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]}
    SQS.change_message_visibility(**handle, VisibilityTimeout=0)
    [again] = receive(url, VisibilityTimeout=600)
    assert again["MessageId"] == message["MessageId"]
    is_refused_as(refused(SQS.change_message_visibility, **handle, VisibilityTimeout=5), "ReceiptHandleIsInvalid", 404)


def what_fails_too_often_goes_to_its_dead_letter_queue_and_back():
    dead = new_queue()
    arn = SQS.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    url = new_queue(RedrivePolicy=policy, VisibilityTimeout="0")
    assert SQS.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [url]
    sent = SQS.send_message(QueueUrl=url, MessageBody="m")
    assert len(receive(url)) == 1
    assert receive(url, WaitTimeSeconds=0) == []
    [moved] = receive(dead, VisibilityTimeout=0, AttributeNames=["All"])
    assert moved["MessageId"] == sent["MessageId"] and moved["Attributes"]["DeadLetterQueueSourceArn"], moved
    task = SQS.start_message_move_task(SourceArn=arn) if hasattr(SQS, "start_message_move_task") else None
    if task is not None:
        assert task["TaskHandle"]
        [back] = receive(url, VisibilityTimeout=600)
        assert back["MessageId"] == sent["MessageId"], back
        assert SQS.list_message_move_tasks(SourceArn=arn)["Results"][0]["SourceArn"] == arn


CASES = [
    the_protocol_is_the_one_that_is_meant,
    a_queue_is_created_and_found,
    a_queue_with_other_attributes_is_a_conflict,
    a_message_with_attributes_makes_the_round,
    only_what_is_asked_for_comes_with_a_message,
    a_plain_send_has_no_digest_of_attributes,
    bodies_come_back_as_they_were,
    an_empty_receive_has_no_messages,
    a_receive_that_waits_is_woken_by_a_send,
    the_wait_of_the_queue_holds_where_none_is_named,
    a_message_comes_again_when_its_visibility_ends,
    a_delayed_message_comes_when_it_is_due,
    a_delete_may_be_repeated_and_an_old_handle_deletes_nothing,
    a_handle_that_is_none_is_refused,
    a_queue_that_is_none_is_refused_by_its_class,
    a_batch_tells_each_entry_its_own,
    a_batch_that_is_wrong_as_a_whole_does_nothing,
    attributes_tags_and_lists,
    depth_is_counted_and_a_purge_empties,
    visibility_is_changed_by_its_holder,
    what_fails_too_often_goes_to_its_dead_letter_queue_and_back,
    what_is_wrong_with_a_request_is_told_by_class_or_code,
    a_wrong_secret_is_refused,
    an_unknown_key_is_refused,
    a_clock_that_is_wrong_is_told,
    no_signature_is_told,
    a_presigned_address_is_answered_with_xml_until_it_expires,
    a_form_to_the_address_of_a_queue_needs_no_queue_url,
]


def main():
    passed = failed = 0
    for case in CASES:
        label = f"boto3 {boto3.__version__} {PROTOCOL}: {case.__name__}"
        try:
            case()
        except Exception as error:
            failed += 1
            print(f"FAIL {label}: {error!r}", flush=True)
            traceback.print_exception(error, limit=-3)
        else:
            passed += 1
            print(f"ok   {label}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
