"""FIFO queues by boto3: order, duplicates, receives that are made again, dead letters."""

import hashlib
import json

from support import (
    SQS,
    arn_of,
    depth,
    is_refused_as,
    md5,
    new_fifo_queue,
    new_queue,
    receive,
    refused,
)


def send(url, group, body, **more):
    return SQS.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=group, **more)


def bodies(messages):
    return [message["Body"] for message in messages]


def delete(url, messages):
    entries = [{"Id": f"d{n}", "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(messages)]
    gone = SQS.delete_message_batch(QueueUrl=url, Entries=entries)
    assert len(gone["Successful"]) == len(entries), gone


def a_fifo_queue_is_one_by_name_and_attribute():
    url = new_fifo_queue()
    assert url.endswith(".fifo"), url
    asked = ["FifoQueue", "ContentBasedDeduplication"]
    found = SQS.get_queue_attributes(QueueUrl=url, AttributeNames=asked)["Attributes"]
    assert found == {"FifoQueue": "true", "ContentBasedDeduplication": "true"}, found
    assert arn_of(url).endswith(url.rsplit("/", 1)[1])
    for name, attributes in (("case.fifo", {}), ("case.fifo", {"FifoQueue": "false"}), ("case", {"FifoQueue": "true"})):
        is_refused_as(refused(SQS.create_queue, QueueName=name, Attributes=attributes), "InvalidParameterValue", 400)


def a_group_keeps_its_order_and_several_come_at_once():
    url = new_fifo_queue()
    sequences = [send(url, "g", f"m{n}")["SequenceNumber"] for n in range(12)]
    assert sequences == sorted(sequences, key=int) and len(set(sequences)) == 12, sequences
    first = receive(url, AttributeNames=["All"])
    assert bodies(first) == [f"m{n}" for n in range(10)], bodies(first)
    shown = [message["Attributes"] for message in first]
    assert [one["SequenceNumber"] for one in shown] == sequences[:10], shown
    assert {one["MessageGroupId"] for one in shown} == {"g"}, shown
    # Nobody gets more of the group before all of these are gone.
    assert receive(url, WaitTimeSeconds=0) == []
    delete(url, first[:9])
    assert receive(url, WaitTimeSeconds=0) == []
    delete(url, first[9:])
    assert bodies(receive(url)) == ["m10", "m11"]


def groups_do_not_wait_for_each_other():
    url = new_fifo_queue()
    for body in ("a0", "b0", "a1", "b1"):
        send(url, body[0], body)
    held = receive(url, MaxNumberOfMessages=1)
    assert bodies(held) == ["a0"], held
    assert bodies(receive(url)) == ["b0", "b1"]
    delete(url, held)
    assert bodies(receive(url)) == ["a1"]


def a_group_begins_at_its_front_again():
    url = new_fifo_queue()
    for n in range(3):
        send(url, "g", f"m{n}")
    held = receive(url, MaxNumberOfMessages=2, VisibilityTimeout=600)
    for message in held:
        SQS.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    assert bodies(receive(url)) == ["m0", "m1", "m2"]


def a_message_is_kept_once_by_its_id():
    url = new_fifo_queue(ContentBasedDeduplication="false")
    first = send(url, "g", "one", MessageDeduplicationId="id")
    again = send(url, "g", "another", MessageDeduplicationId="id")
    same = ("MessageId", "SequenceNumber")
    assert [again[name] for name in same] == [first[name] for name in same], (first, again)
    assert again["MD5OfMessageBody"] == md5("another"), again
    assert send(url, "g", "one", MessageDeduplicationId="other")["MessageId"] != first["MessageId"]
    assert depth(url) == [2, 0, 0], depth(url)
    messages = receive(url, AttributeNames=["MessageDeduplicationId"])
    assert bodies(messages) == ["one", "one"], messages
    assert [one["Attributes"]["MessageDeduplicationId"] for one in messages] == ["id", "other"], messages
    # Also when it is gone.
    delete(url, messages)
    assert send(url, "g", "one", MessageDeduplicationId="id")["MessageId"] == first["MessageId"]
    assert depth(url) == [0, 0, 0], depth(url)


def a_message_is_kept_once_by_its_content():
    url = new_fifo_queue()
    first = send(url, "g", "hello")
    attributes = {"a": {"DataType": "String", "StringValue": "b"}}
    again = send(url, "g", "hello", MessageAttributes=attributes)
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"]), again
    [message] = receive(url, AttributeNames=["All"], MessageAttributeNames=["All"])
    assert message["Attributes"]["MessageDeduplicationId"] == hashlib.sha256(b"hello").hexdigest(), message
    assert "MessageAttributes" not in message, message


def the_same_attempt_gets_the_same_messages():
    url = new_fifo_queue()
    for n in range(3):
        send(url, "g", f"m{n}")
    attempt = {"MaxNumberOfMessages": 2, "ReceiveRequestAttemptId": "once", "WaitTimeSeconds": 0}
    first = receive(url, **attempt)
    assert bodies(first) == ["m0", "m1"], first
    again = receive(url, **attempt)
    handles = [[one["ReceiptHandle"] for one in messages] for messages in (first, again)]
    assert handles[0] == handles[1], (first, again)
    assert receive(url, **{**attempt, "ReceiveRequestAttemptId": "twice"}) == []
    delete(url, first[:1])
    assert receive(url, **attempt) == []


def a_batch_keeps_order_and_tells_each_entry_its_own():
    url = new_fifo_queue()
    entries = [{"Id": f"e{n}", "MessageBody": f"m{n}", "MessageGroupId": "g"} for n in range(6)]
    entries[2] = {**entries[2], "MessageBody": "m1"}
    del entries[4]["MessageGroupId"]
    sent = SQS.send_message_batch(QueueUrl=url, Entries=entries)
    [failed] = sent["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("e4", "MissingParameter", True), failed
    by_id = {entry["Id"]: entry for entry in sent["Successful"]}
    assert by_id["e1"]["MessageId"] == by_id["e2"]["MessageId"], by_id
    assert by_id["e1"]["SequenceNumber"] == by_id["e2"]["SequenceNumber"], by_id
    order = [int(by_id[name]["SequenceNumber"]) for name in ("e0", "e1", "e3", "e5")]
    assert order == sorted(order), order
    assert bodies(receive(url)) == ["m0", "m1", "m3", "m5"]


def a_dead_letter_makes_way_for_its_group():
    dead = new_fifo_queue()
    policy = json.dumps({"deadLetterTargetArn": arn_of(dead), "maxReceiveCount": 1})
    url = new_fifo_queue(RedrivePolicy=policy, VisibilityTimeout="0")
    poison = send(url, "g", "poison")
    assert bodies(receive(url)) == ["poison"]
    send(url, "g", "next")
    assert bodies(receive(url, VisibilityTimeout=600)) == ["next"]
    [moved] = receive(dead, AttributeNames=["All"])
    shown = moved["Attributes"]
    assert (moved["MessageId"], shown["MessageGroupId"]) == (poison["MessageId"], "g"), moved
    assert shown["DeadLetterQueueSourceArn"] == arn_of(url) and shown["SequenceNumber"].isdigit(), shown
    plain = json.dumps({"deadLetterTargetArn": arn_of(new_queue()), "maxReceiveCount": 1})
    error = refused(SQS.set_queue_attributes, QueueUrl=url, Attributes={"RedrivePolicy": plain})
    is_refused_as(error, "InvalidAttributeValue", 400)


def what_a_fifo_queue_does_not_take():
    strict = new_fifo_queue(ContentBasedDeduplication="false")
    url = new_fifo_queue()
    for queue, arguments, code in [
        (url, {}, "MissingParameter"),
        (url, {"MessageGroupId": "a b"}, "InvalidParameterValue"),
        (url, {"MessageGroupId": "g" * 129}, "InvalidParameterValue"),
        (url, {"MessageGroupId": "g", "MessageDeduplicationId": "d" * 129}, "InvalidParameterValue"),
        (url, {"MessageGroupId": "g", "DelaySeconds": 1}, "InvalidParameterValue"),
        (strict, {"MessageGroupId": "g"}, "InvalidParameterValue"),
        (new_queue(), {"MessageDeduplicationId": "d"}, "InvalidParameterValue"),
    ]:
        is_refused_as(refused(SQS.send_message, QueueUrl=queue, MessageBody="m", **arguments), code, 400)
        assert depth(queue) == [0, 0, 0], (queue, arguments)
    error = refused(SQS.receive_message, QueueUrl=url, ReceiveRequestAttemptId="a b")
    is_refused_as(error, "InvalidParameterValue", 400)


def a_standard_queue_shows_the_group():
    url = new_queue()
    sent = send(url, "tenant-7", "m")
    assert "SequenceNumber" not in sent, sent
    [message] = receive(url, AttributeNames=["All"])
    assert message["Attributes"]["MessageGroupId"] == "tenant-7", message
    assert "SequenceNumber" not in message["Attributes"], message


CASES = [
    a_fifo_queue_is_one_by_name_and_attribute,
    a_group_keeps_its_order_and_several_come_at_once,
    groups_do_not_wait_for_each_other,
    a_group_begins_at_its_front_again,
    a_message_is_kept_once_by_its_id,
    a_message_is_kept_once_by_its_content,
    the_same_attempt_gets_the_same_messages,
    a_batch_keeps_order_and_tells_each_entry_its_own,
    a_dead_letter_makes_way_for_its_group,
    what_a_fifo_queue_does_not_take,
    a_standard_queue_shows_the_group,
]
