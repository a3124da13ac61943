"""Requests that no SDK makes: wrongly signed, changed on the way, unreadable. Each has its error and does nothing."""

from datetime import timedelta

import cases  # noqa: F401: before botocore
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest

from support import (
    ENDPOINT,
    PROTOCOL,
    REGION,
    SECRET,
    SQS,
    by_hand,
    client,
    code_of,
    depth,
    form,
    is_refused_as,
    md5,
    new_queue,
    raw,
    receive,
    refused,
    signed,
)


def name_of(url):
    return url.rsplit("/", 1)[1]


def is_answered(request, status, code):
    found, headers, text = raw(request)
    assert (found, code_of(text)) == (status, code), (found, text)
    wanted = {"json": "application/x-amz-json-1.0", "query": "text/xml"}[PROTOCOL]
    assert headers["Content-Type"].startswith(wanted), headers
    assert headers["x-amzn-RequestId"], headers


def a_wrong_secret_is_refused():
    other = "a" if SECRET[-1] != "a" else "b"
    error = refused(client(secret=SECRET[:-1] + other).create_queue, QueueName="case")
    is_refused_as(error, "SignatureDoesNotMatch", 403)


def an_unknown_key_is_refused():
    error = refused(client(key="AKIAIOSFODNN7EXAMPLE").create_queue, QueueName="case")
    is_refused_as(error, "InvalidClientTokenId", 403)


def a_clock_that_is_wrong_is_told():
    url = new_queue()
    for sent, minutes in enumerate((-10, 10), 1):
        request = by_hand("SendMessage", {"QueueUrl": url, "MessageBody": "m"})
        status, _, text = raw(signed(request, timedelta(minutes=minutes)))
        assert status == 200 and depth(url) == [sent, 0, 0], (minutes, status, text)
    for minutes in (-20, 20):
        request = by_hand("SendMessage", {"QueueUrl": url, "MessageBody": "m"})
        is_answered(signed(request, timedelta(minutes=minutes)), 403, "RequestTimeTooSkewed")
    assert depth(url) == [2, 0, 0], depth(url)


def no_signature_is_told():
    url = new_queue()
    is_answered(by_hand("SendMessage", {"QueueUrl": url, "MessageBody": "m"}), 403, "MissingAuthenticationToken")
    request = by_hand("SendMessage", {"QueueUrl": url, "MessageBody": "m"})
    request.headers["Authorization"] = "AWS4-HMAC-SHA256 Credential=half"
    is_answered(request, 400, "IncompleteSignature")
    assert depth(url) == [0, 0, 0], depth(url)


def what_was_signed_is_what_must_come():
    url = new_queue()

    def send():
        return signed(by_hand("SendMessage", {"QueueUrl": url, "MessageBody": "first"}))

    request = send()
    request.data = request.data.replace("first", "other")
    is_answered(request, 403, "SignatureDoesNotMatch")
    request = send()
    request.data += " " if PROTOCOL == "json" else "&DelaySeconds=1"
    is_answered(request, 403, "SignatureDoesNotMatch")
    request = send()
    request.url += "?Action=PurgeQueue"
    is_answered(request, 403, "SignatureDoesNotMatch")
    if PROTOCOL == "json":
        request = send()
        request.headers.replace_header("X-Amz-Target", "AmazonSQS.PurgeQueue")
        is_answered(request, 403, "SignatureDoesNotMatch")
    assert depth(url) == [0, 0, 0], depth(url)
    assert raw(send())[0] == 200 and depth(url) == [1, 0, 0], depth(url)


def a_signature_for_something_else_is_refused():
    url = new_queue()
    for scope in ({"service": "s3"}, {"region": "eu-west-1" if REGION != "eu-west-1" else "us-east-1"}):
        request = by_hand("SendMessage", {"QueueUrl": url, "MessageBody": "m"})
        is_answered(signed(request, **scope), 403, "SignatureDoesNotMatch")
    assert depth(url) == [0, 0, 0], depth(url)


def a_presigned_address_is_answered_with_xml_until_it_expires():
    url = new_queue()
    for minutes, expected in ((0, 200), (-2, 403)):
        request = AWSRequest("GET", f"{ENDPOINT}/?Action=GetQueueUrl&Version=2012-11-05&QueueName={name_of(url)}")
        signed(request, timedelta(minutes=minutes), kind=SigV4QueryAuth, expires=60)
        status, headers, text = raw(request)
        assert status == expected, (minutes, status, text)
        assert headers["Content-Type"].startswith("text/xml"), headers
        assert (f"<QueueUrl>{url}</QueueUrl>" in text) == (expected == 200), text
        assert ("<Code>RequestExpired</Code>" in text) == (expected == 403), text


def a_form_to_the_address_of_a_queue_needs_no_queue_url():
    url = new_queue()
    body = "1 + 1 = 2 & é"
    headers, data = form(Action="SendMessage", MessageBody=body)
    status, _, text = raw(signed(AWSRequest("POST", url, headers=headers, data=data)))
    assert status == 200 and f"<MD5OfMessageBody>{md5(body)}</MD5OfMessageBody>" in text, (status, text)
    [message] = receive(url)
    assert message["Body"] == body, message


def what_cannot_be_read_is_refused():
    url = new_queue()
    if PROTOCOL == "json":
        good = '"QueueUrl":"%s","MessageBody":"m"' % url
        bodies = [
            "{" + good,
            "{" + good + "}}",
            "[{" + good + "}]",
            "{" + good + ',"DelaySeconds":"soon"}',
            "{" + good + ',"MessageAttributes":[]}',
            '{"QueueUrl":"%s","MessageBody":7}' % url,
            "{" + good + ',"MessageAttributes":{"a":{"DataType":"Binary","BinaryValue":"%%%"}}}',
            "{" + good + ',"Deep":' + "[" * 5_000 + "]" * 5_000 + "}",
            ("{" + good + "}").encode().replace(b'"m"', b'"\xff"'),
            b"\x00\x01\x02",
        ]
    else:
        good = form(Action="SendMessage", QueueUrl=url, MessageBody="m")[1]
        bodies = [
            good.replace("MessageBody=m", "MessageBody=%FF"),
            good + "&DelaySeconds=soon",
            good + "&DelaySeconds=",
            good + "&MessageAttribute.1.Name=a&MessageAttribute.1.Value.DataType=Binary"
            "&MessageAttribute.1.Value.BinaryValue=%25%25%25",
            good + "&" + ".".join(["a"] * 500) + "=1",
        ]
    for body in bodies:
        request = signed(by_hand("SendMessage", {}, body=body))
        try:
            is_answered(request, 400, "InvalidParameterValue")
        except AssertionError as error:
            raise AssertionError(body[-120:]) from error
    assert depth(url) == [0, 0, 0], depth(url)


def an_action_that_is_none_is_refused():
    is_answered(signed(by_hand("DropQueue", {})), 400, "InvalidAction")
    if PROTOCOL == "json":
        request = by_hand("DropQueue", {})
        del request.headers["X-Amz-Target"]
    else:
        headers, data = form(QueueName="case")
        request = AWSRequest("POST", f"{ENDPOINT}/", headers=headers, data=data)
    is_answered(signed(request), 400, "MissingAction")


def what_is_left_out_is_named():
    url = new_queue()
    SQS.send_message(QueueUrl=url, MessageBody="m")
    [message] = receive(url)
    handle = {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]}
    for action, members in [
        ("CreateQueue", {}),
        ("SendMessage", {"QueueUrl": url}),
        ("DeleteMessage", {"QueueUrl": url}),
        # Left out it must not be taken for 0, which gives the message back.
        ("ChangeMessageVisibility", handle),
        ("SetQueueAttributes", {"QueueUrl": url}),
    ]:
        is_answered(signed(by_hand(action, members)), 400, "MissingParameter")
    assert depth(url) == [0, 1, 0], depth(url)


def handles_of_another_queue_or_of_before_are_refused():
    one, other = new_queue(), new_queue()
    for url in (one, other):
        SQS.send_message(QueueUrl=url, MessageBody="m")
    [message] = receive(one)
    receive(other)
    handle = message["ReceiptHandle"]

    def is_refused(url):
        for call, more in ((SQS.delete_message, {}), (SQS.change_message_visibility, {"VisibilityTimeout": 0})):
            error = refused(call, QueueUrl=url, ReceiptHandle=handle, **more)
            assert isinstance(error, SQS.exceptions.ReceiptHandleIsInvalid), error
            is_refused_as(error, "ReceiptHandleIsInvalid", 404)
        entry = {"Id": "a", "ReceiptHandle": handle}
        gone = SQS.delete_message_batch(QueueUrl=url, Entries=[entry])
        changed = SQS.change_message_visibility_batch(QueueUrl=url, Entries=[{**entry, "VisibilityTimeout": 0}])
        for answer in (gone, changed):
            [failed] = answer["Failed"]
            assert (failed["Code"], failed["SenderFault"]) == ("ReceiptHandleIsInvalid", True), failed

    is_refused(other)
    assert (depth(one), depth(other)) == ([0, 1, 0], [0, 1, 0])
    # A queue of the same name is another queue.
    SQS.delete_queue(QueueUrl=one)
    assert SQS.create_queue(QueueName=name_of(one))["QueueUrl"] == one
    SQS.send_message(QueueUrl=one, MessageBody="m")
    receive(one)
    is_refused(one)
    assert depth(one) == [0, 1, 0], depth(one)


def ids_of_a_batch_are_distinct_in_every_action():
    url = new_queue()
    SQS.send_message(QueueUrl=url, MessageBody="m")
    [message] = receive(url)
    entry = {"Id": "a", "ReceiptHandle": message["ReceiptHandle"]}
    for call, more in ((SQS.delete_message_batch, {}), (SQS.change_message_visibility_batch, {"VisibilityTimeout": 0})):
        error = refused(call, QueueUrl=url, Entries=[{**entry, **more}] * 2)
        assert isinstance(error, SQS.exceptions.BatchEntryIdsNotDistinct), error
        is_refused_as(error, "AWS.SimpleQueueService.BatchEntryIdsNotDistinct", 400)
    assert depth(url) == [0, 1, 0], depth(url)


def attributes_out_of_range_are_refused_on_create_and_set():
    url = new_queue()

    def all_attributes():
        return SQS.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]

    before = all_attributes()
    for name, values in {
        "VisibilityTimeout": ("-1", "43201", "1.5", "", "soon"),
        "MessageRetentionPeriod": ("59", "1209601"),
        "DelaySeconds": ("-1", "901"),
        "ReceiveMessageWaitTimeSeconds": ("-1", "21", "99999999999999999999"),
        "MaximumMessageSize": ("1023", "1048577"),
        "ContentBasedDeduplication": ("true",),
        "RedrivePolicy": (
            "{",
            '{"maxReceiveCount":1}',
            '{"deadLetterTargetArn":"arn:aws:sqs:x:0:none","maxReceiveCount":1}',
        ),
        "RedriveAllowPolicy": ('{"redrivePermission":"some"}',),
    }.items():
        for value in values:
            fresh = f"{name_of(url)}-2"
            for error in (
                refused(SQS.create_queue, QueueName=fresh, Attributes={name: value}),
                refused(SQS.set_queue_attributes, QueueUrl=url, Attributes={"DelaySeconds": "7", name: value}),
            ):
                try:
                    is_refused_as(error, "InvalidAttributeValue", 400)
                except AssertionError as wrong:
                    raise AssertionError(f"{name} {value!r}") from wrong
    assert all_attributes() == before
    assert "QueueUrls" not in SQS.list_queues(QueueNamePrefix=f"{name_of(url)}-")


CASES = [
    a_wrong_secret_is_refused,
    an_unknown_key_is_refused,
    a_clock_that_is_wrong_is_told,
    no_signature_is_told,
    what_was_signed_is_what_must_come,
    a_signature_for_something_else_is_refused,
    a_presigned_address_is_answered_with_xml_until_it_expires,
    a_form_to_the_address_of_a_queue_needs_no_queue_url,
    what_cannot_be_read_is_refused,
    an_action_that_is_none_is_refused,
    what_is_left_out_is_named,
    handles_of_another_queue_or_of_before_are_refused,
    ids_of_a_batch_are_distinct_in_every_action,
    attributes_out_of_range_are_refused_on_create_and_set,
]
