"""SQS by the AWS CLI, one process per command, against a running server.

WAYBILL_SQS_ENDPOINT names the server, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are a key that may send, receive and
manage queues. Prints one line per case and ends with `N passed, M failed`.
"""

import json
import os
import subprocess
import sys
import time
import uuid

import awscli
import cases

ENVIRONMENT = {
    **os.environ,
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_MAX_ATTEMPTS": "1",
    # Nobody listens there: a command that is not meant for the server under test must not leave the machine.
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "NO_PROXY": "127.0.0.1",
}
# By a flag: version 1 does not look at AWS_ENDPOINT_URL_SQS in regions for which it knows an older name of SQS.
AWS = [sys.executable, "-m", "awscli", "--endpoint-url", os.environ["WAYBILL_SQS_ENDPOINT"]]
# The interpreter takes a second to come up where the machine is busy.
COMMAND_SECONDS_MAX = 120
# After this long it is waiting, as a rule; a later start makes the case no weaker than a receive without a wait.
START_SECONDS = 3
# What the CLI ends with when the server has refused.
REFUSED = 255
# Commands are mostly start-up, and the machine has more than one core.
AT_ONCE = 4


def aws(*words, **options):
    """Standard output, read as JSON when there is any."""
    status, out, err = attempt(*words, **options)
    assert status == 0, (words, status, err)
    return json.loads(out) if out else out


def attempt(*words, **options):
    command = [*AWS, "sqs", *words]
    for name, value in options.items():
        text = value if isinstance(value, str) else json.dumps(value)
        command += [f"--{name.replace('_', '-')}", text]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX)
    return done.returncode, done.stdout, done.stderr


def is_refused(code, *words, **options):
    status, out, err = attempt(*words, **options)
    assert (status, out) == (REFUSED, ""), (status, out, err)
    assert f"({code})" in err, err


def new_queue(suffix="", **attributes):
    name = f"cli-{uuid.uuid4().hex}{suffix}"
    return aws("create-queue", queue_name=name, attributes=attributes)["QueueUrl"]


def a_receive_that_waits_is_woken_by_a_send_and_gets_it_whole():
    url = new_queue()
    words = ["receive-message", "--queue-url", url, "--wait-time-seconds", "20", "--message-attribute-names", "All"]
    command = [*AWS, "sqs", *words, "--message-system-attribute-names", "All"]
    # Version 1 takes bytes as they are, and prints them in base64.
    attributes = {
        "text": {"DataType": "String", "StringValue": "grüße"},
        "number": {"DataType": "Number", "StringValue": "42"},
        "bytes": {"DataType": "Binary", "BinaryValue": "<&>"},
    }
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as waiting:
        time.sleep(START_SECONDS)
        assert waiting.poll() is None, waiting.communicate()
        sent = aws("send-message", queue_url=url, message_body="hello", message_attributes=attributes)
        out, _ = waiting.communicate(timeout=COMMAND_SECONDS_MAX)
    assert waiting.returncode == 0, out
    [message] = json.loads(out)["Messages"]
    assert (message["MessageId"], message["Body"]) == (sent["MessageId"], "hello"), message
    assert message["MD5OfBody"] == sent["MD5OfMessageBody"] == "5d41402abc4b2a76b9719d911017c592", message
    attributes["bytes"]["BinaryValue"] = "PCY+"
    assert message["MessageAttributes"] == attributes, message
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"], message
    assert message["Attributes"]["ApproximateReceiveCount"] == "1", message
    handle = message["ReceiptHandle"]
    assert aws("delete-message", queue_url=url, receipt_handle=handle) == ""
    # Nothing is printed when there is nothing.
    assert attempt("receive-message", queue_url=url, wait_time_seconds="1") == (0, "", "")


def a_fifo_queue_keeps_order_and_batches_tell_each_entry_its_own():
    # Long enough for a machine that stands still between two commands.
    url = new_queue(".fifo", FifoQueue="true", VisibilityTimeout="600")
    entries = [
        {"Id": f"e{n}", "MessageBody": f"m{n}", "MessageGroupId": "g", "MessageDeduplicationId": f"d{n % 3}"}
        for n in range(4)
    ]
    alone = {"Id": "alone", "MessageBody": "m", "MessageDeduplicationId": "d"}
    answer = aws("send-message-batch", queue_url=url, entries=[*entries, alone])
    sent = answer["Successful"]
    assert sent[3]["SequenceNumber"] == sent[0]["SequenceNumber"] < sent[1]["SequenceNumber"], sent
    assert [(one["Id"], one["Code"]) for one in answer["Failed"]] == [("alone", "MissingParameter")], answer
    twice = [entries[0], entries[0]]
    code = "AWS.SimpleQueueService.BatchEntryIdsNotDistinct"
    is_refused(code, "send-message-batch", queue_url=url, entries=twice)
    options = {"max_number_of_messages": "10", "receive_request_attempt_id": "once", "wait_time_seconds": "20"}
    got = [aws("receive-message", queue_url=url, **options)["Messages"] for _ in range(2)]
    assert [message["Body"] for message in got[0]] == ["m0", "m1", "m2"] and got[0] == got[1], got
    handles = [{"Id": f"d{n}", "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(got[0])]
    longer = [{**handle, "VisibilityTimeout": 600} for handle in handles]
    assert len(aws("change-message-visibility-batch", queue_url=url, entries=longer)["Successful"]) == 3
    assert len(aws("delete-message-batch", queue_url=url, entries=handles)["Successful"]) == 3


def attributes_tags_and_lists():
    url = new_queue(VisibilityTimeout="7")
    name = url.rsplit("/", 1)[1]
    assert aws("set-queue-attributes", queue_url=url, attributes={"DelaySeconds": "1"}) == ""
    found = aws("get-queue-attributes", queue_url=url, attribute_names="All")["Attributes"]
    assert (found["VisibilityTimeout"], found["DelaySeconds"]) == ("7", "1"), found
    assert found["QueueArn"] == f"arn:aws:sqs:us-east-1:000000000000:{name}", found
    assert aws("tag-queue", queue_url=url, tags={"team": "a", "stage": "b c"}) == ""
    assert aws("list-queue-tags", queue_url=url)["Tags"] == {"team": "a", "stage": "b c"}
    other = aws("create-queue", queue_name=f"{name}-2")["QueueUrl"]
    # The CLI follows the tokens by itself.
    assert aws("list-queues", "--page-size", "1", queue_name_prefix=name)["QueueUrls"] == [url, other]


def errors_end_with_their_exit_code_and_a_purge_empties():
    url = new_queue()
    name = url.rsplit("/", 1)[1]
    aws("send-message", queue_url=url, message_body="m")
    is_refused("QueueAlreadyExists", "create-queue", queue_name=name, attributes={"DelaySeconds": "9"})
    is_refused("InvalidParameterValue", "receive-message", queue_url=url, max_number_of_messages="11")
    is_refused("ReceiptHandleIsInvalid", "delete-message", queue_url=url, receipt_handle="nonsense")
    assert aws("purge-queue", queue_url=url) == ""
    is_refused("AWS.SimpleQueueService.PurgeQueueInProgress", "purge-queue", queue_url=url)
    assert attempt("receive-message", queue_url=url) == (0, "", "")
    assert aws("delete-queue", queue_url=url) == ""
    is_refused("AWS.SimpleQueueService.NonExistentQueue", "send-message", queue_url=url, message_body="m")


CASES = [
    a_receive_that_waits_is_woken_by_a_send_and_gets_it_whole,
    a_fifo_queue_keeps_order_and_batches_tell_each_entry_its_own,
    attributes_tags_and_lists,
    errors_end_with_their_exit_code_and_a_purge_empties,
]


if __name__ == "__main__":
    sys.exit(cases.run(f"aws-cli {awscli.__version__}", CASES, AT_ONCE))
