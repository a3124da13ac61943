"""SQS by boto3, which knows nothing of Waybill, against a running server.

Prints one line per case and ends with `N passed, M failed`. What it needs to know is in `support.py`.
"""

import json
import sys
import threading
import time
import uuid

import cases
import boto3
import botocore

import fifo
import wire
from support import (
    ENDPOINT,
    MESSAGE_BYTES_MAX,
    NO_QUEUE,
    PROTOCOL,
    SQS,
    arn_of,
    client,
    depth,
    is_refused_as,
    md5,
    md5_of_attributes,
    new_queue,
    receive,
    refused,
)


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
    for _ in range(3):
        SQS.send_message(QueueUrl=url, MessageBody="m")
    SQS.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=600)
    [taken] = receive(url, MaxNumberOfMessages=1)
    assert depth(url) == [2, 1, 1], depth(url)
    SQS.purge_queue(QueueUrl=url)
    assert depth(url) == [0, 0, 0], depth(url)
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
    arn = arn_of(dead)
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


def a_throttled_queue_refuses_the_eleventh_send_and_says_when():
    throttle = {"ThrottleSendCapacity": "10", "ThrottleSendRefillPerSecond": "0.01"}
    url = new_queue(**throttle)
    shown = SQS.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert {name: value for name, value in shown.items() if name.startswith("Throttle")} == throttle, shown
    for _ in range(10):
        SQS.send_message(QueueUrl=url, MessageBody="m")
    error = refused(SQS.send_message, QueueUrl=url, MessageBody="m")
    is_refused_as(error, "Throttling", 400)
    headers = error.response["ResponseMetadata"]["HTTPHeaders"]
    assert 1 <= int(headers["retry-after"]) <= 100, headers
    assert int(headers["x-amz-retry-after"]) == 1000 * int(headers["retry-after"]), headers
    # The SDK's own classification, by which it would have tried again.
    from botocore.retries.standard import ThrottledRetryableChecker

    assert "Throttling" in ThrottledRetryableChecker._THROTTLED_ERROR_CODES
    entries = [{"Id": str(place), "MessageBody": "m"} for place in range(10)]
    is_refused_as(refused(SQS.send_message_batch, QueueUrl=url, Entries=entries), "Throttling", 400)
    # What is received has a budget of its own, and another limit counts at once.
    assert len(receive(url)) == 10
    SQS.set_queue_attributes(QueueUrl=url, Attributes={"ThrottleSendCapacity": "20"})
    SQS.send_message(QueueUrl=url, MessageBody="m")
    SQS.set_queue_attributes(QueueUrl=url, Attributes={name: "0" for name in throttle})
    for _ in range(3):
        SQS.send_message_batch(QueueUrl=url, Entries=entries)


def a_throttle_that_could_not_work_is_refused():
    pair = ("ThrottleSendCapacity", "ThrottleSendRefillPerSecond")
    for capacity, refill in (("9", "1"), ("10", "11"), ("10", "0"), ("NaN", "1"), ("1e9", "1"), ("", "1")):
        name = f"case-{uuid.uuid4().hex}"
        error = refused(SQS.create_queue, QueueName=name, Attributes=dict(zip(pair, (capacity, refill))))
        is_refused_as(error, "InvalidAttributeValue", 400)
    error = refused(SQS.create_queue, QueueName=f"case-{uuid.uuid4().hex}", Attributes={"ThrottleNobody": "1"})
    is_refused_as(error, "InvalidAttributeName", 400)


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
    a_throttled_queue_refuses_the_eleventh_send_and_says_when,
    a_throttle_that_could_not_work_is_refused,
    what_is_wrong_with_a_request_is_told_by_class_or_code,
]


if __name__ == "__main__":
    name = f"boto3 {boto3.__version__} {PROTOCOL}"
    sys.exit(cases.run(name, CASES + fifo.CASES + wire.CASES))
