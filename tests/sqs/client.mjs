// SQS by the AWS SDK for JavaScript, which checks the digest of every body it is told, against a running server.
//
// WAYBILL_SQS_ENDPOINT names the server, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are a key that may send, receive
// and manage queues, WAYBILL_SQS_SDK is the folder in which npm has put the SDK. Prints one line per case and ends with
// `N passed, M failed`.

import assert from "node:assert/strict";
import { createHash, randomUUID } from "node:crypto";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(`${process.env.WAYBILL_SQS_SDK}/`);
const sdk = require("@aws-sdk/client-sqs");
const { version } = require("@aws-sdk/client-sqs/package.json");

// A shared machine may stand still for a while; a case that hangs must end all the same.
const CASE_MS_MAX = 60_000;
// Cases mostly wait.
const AT_ONCE = 4;

const sqs = new sdk.SQS({
  endpoint: process.env.WAYBILL_SQS_ENDPOINT,
  region: "us-east-1",
  credentials: {
    accessKeyId: process.env.AWS_ACCESS_KEY_ID,
    secretAccessKey: process.env.AWS_SECRET_ACCESS_KEY,
  },
  // A second try would hide what the first one was answered.
  maxAttempts: 1,
});

async function newQueue(suffix = "", Attributes = {}) {
  const { QueueUrl } = await sqs.createQueue({ QueueName: `js-${randomUUID()}${suffix}`, Attributes });
  return QueueUrl;
}

const newFifoQueue = (more = {}) =>
  newQueue(".fifo", { FifoQueue: "true", ContentBasedDeduplication: "true", VisibilityTimeout: "600", ...more });

async function receive(QueueUrl, more = {}) {
  const asked = { QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 20, ...more };
  return (await sqs.receiveMessage(asked)).Messages ?? [];
}

async function depth(QueueUrl) {
  const AttributeNames = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"];
  const { Attributes } = await sqs.getQueueAttributes({ QueueUrl, AttributeNames });
  return AttributeNames.map((name) => Number(Attributes[name]));
}

/** Refused as an error of this class and with this status. */
async function isRefused(call, kind, status) {
  const error = await call.then(
    (answer) => assert.fail(`this was not refused: ${JSON.stringify(answer)}`),
    (error) => error,
  );
  if (typeof kind === "string") assert.equal(error.name, kind);
  else assert.ok(error instanceof kind, `${error.name}: ${error.message}`);
  assert.equal(error.$metadata.httpStatusCode, status);
  assert.equal(error.$fault, "client");
  assert.ok(error.message && error.$metadata.requestId, JSON.stringify(error.$metadata));
}

/** As SQS computes it: name, type and value of each, with their lengths before them. The SDK leaves this to us. */
function digestOf(attributes) {
  const digest = createHash("md5");
  const part = (bytes) => {
    const length = Buffer.alloc(4);
    length.writeUInt32BE(bytes.length);
    digest.update(length).update(bytes);
  };
  for (const name of Object.keys(attributes).sort()) {
    const { DataType, StringValue, BinaryValue } = attributes[name];
    part(Buffer.from(name));
    part(Buffer.from(DataType));
    digest.update(Buffer.of(BinaryValue ? 2 : 1));
    part(Buffer.from(BinaryValue ?? StringValue));
  }
  return digest.digest("hex");
}

const VALUES = {
  "text.plain": { DataType: "String", StringValue: "grüße <&> 日本 😀" },
  "text.custom": { DataType: "String.custom", StringValue: "x" },
  "number.float": { DataType: "Number", StringValue: "-42.5e-3" },
  "number.int": { DataType: "Number.int", StringValue: "18446744073709551616" },
  "bytes.raw": { DataType: "Binary", BinaryValue: Uint8Array.from({ length: 256 }, (_, byte) => byte) },
  "bytes.png": { DataType: "Binary.png", BinaryValue: Uint8Array.of(0) },
};

const SYSTEM = {
  AWSTraceHeader: { DataType: "String", StringValue: "Root=1-5759e988-bd862e3fe1be46a994272793" },
};

const cases = {
  async "values of all types make the round, with digests that hold"() {
    const QueueUrl = await newQueue();
    const sent = await sqs.sendMessage({
      QueueUrl,
      MessageBody: "hello",
      MessageAttributes: VALUES,
      MessageSystemAttributes: SYSTEM,
    });
    assert.equal(sent.MD5OfMessageBody, "5d41402abc4b2a76b9719d911017c592");
    assert.equal(sent.MD5OfMessageAttributes, digestOf(VALUES));
    assert.equal(sent.MD5OfMessageSystemAttributes, digestOf(SYSTEM));
    const asked = { MessageAttributeNames: ["All"], MessageSystemAttributeNames: ["All"] };
    const [message] = await receive(QueueUrl, asked);
    assert.equal(message.MessageId, sent.MessageId);
    assert.equal(message.MD5OfMessageAttributes, sent.MD5OfMessageAttributes);
    assert.equal(message.Attributes.AWSTraceHeader, SYSTEM.AWSTraceHeader.StringValue);
    for (const [name, { DataType, StringValue, BinaryValue }] of Object.entries(VALUES)) {
      const found = message.MessageAttributes[name];
      assert.deepEqual([found.DataType, found.StringValue], [DataType, StringValue]);
      assert.deepEqual(found.BinaryValue && [...found.BinaryValue], BinaryValue && [...BinaryValue]);
    }
    await sqs.deleteMessage({ QueueUrl, ReceiptHandle: message.ReceiptHandle });
    assert.deepEqual(await depth(QueueUrl), [0, 0]);
  },

  async "the digest of a receive is that of what was asked for"() {
    const QueueUrl = await newQueue();
    await sqs.sendMessage({ QueueUrl, MessageBody: "m", MessageAttributes: VALUES });
    const asked = [[["All"], 6], [["text.*"], 2], [["number.int", "bytes.*"], 3], [["none"], 0], [[], 0]];
    for (const [names, count] of asked) {
      const [message] = await receive(QueueUrl, { MessageAttributeNames: names, VisibilityTimeout: 0 });
      const found = message.MessageAttributes ?? {};
      assert.equal(Object.keys(found).length, count, names.join());
      assert.equal(message.MD5OfMessageAttributes, count ? digestOf(found) : undefined);
    }
  },

  async "bodies come back as they were"() {
    const QueueUrl = await newQueue();
    for (const body of ["é ü 日本 😀 \u0085", "a\r\nb\tc", '{"a":"\\u0000"}', "<&>".repeat(300_000), " "]) {
      await sqs.sendMessage({ QueueUrl, MessageBody: body });
      const [message] = await receive(QueueUrl);
      assert.ok(message.Body === body, body.slice(0, 40));
      await sqs.deleteMessage({ QueueUrl, ReceiptHandle: message.ReceiptHandle });
    }
  },

  async "a batch tells each entry its own"() {
    const QueueUrl = await newQueue();
    const Entries = Array.from({ length: 10 }, (_, n) => ({
      Id: `e${n}`,
      MessageBody: `m${n}`,
      MessageAttributes: n % 2 ? VALUES : undefined,
    }));
    Entries[4].DelaySeconds = 901;
    const sent = await sqs.sendMessageBatch({ QueueUrl, Entries });
    assert.equal(sent.Successful.length, 9);
    for (const { Id, MD5OfMessageAttributes } of sent.Successful) {
      assert.equal(MD5OfMessageAttributes, Number(Id[1]) % 2 ? digestOf(VALUES) : undefined);
    }
    assert.deepEqual(sent.Failed.map(({ Id, SenderFault }) => [Id, SenderFault]), [["e4", true]]);
    const got = [];
    while (got.length < 9) got.push(...(await receive(QueueUrl, { MessageAttributeNames: ["All"] })));
    const bodies = got.map((message) => message.Body).sort();
    assert.deepEqual(bodies, ["m0", "m1", "m2", "m3", "m5", "m6", "m7", "m8", "m9"]);
    const handles = got.map(({ ReceiptHandle }, n) => ({ Id: `d${n}`, ReceiptHandle }));
    const longer = handles.map((entry) => ({ ...entry, VisibilityTimeout: 600 }));
    const changed = await sqs.changeMessageVisibilityBatch({ QueueUrl, Entries: longer });
    assert.equal(changed.Successful.length, 9);
    const gone = await sqs.deleteMessageBatch({
      QueueUrl,
      Entries: [...handles, { Id: "none", ReceiptHandle: "x" }],
    });
    assert.equal(gone.Successful.length, 9);
    assert.deepEqual(gone.Failed.map(({ Id, Code }) => [Id, Code]), [["none", "ReceiptHandleIsInvalid"]]);
  },

  async "a batch that is wrong as a whole does nothing"() {
    const QueueUrl = await newQueue();
    const entry = { Id: "a", MessageBody: "m" };
    const batch = (Entries) => sqs.sendMessageBatch({ QueueUrl, Entries });
    await isRefused(batch([]), sdk.EmptyBatchRequest, 400);
    await isRefused(batch([entry, entry]), sdk.BatchEntryIdsNotDistinct, 400);
    await isRefused(batch([{ ...entry, Id: "not an id" }]), sdk.InvalidBatchEntryId, 400);
    const many = Array.from({ length: 11 }, (_, n) => ({ ...entry, Id: `e${n}` }));
    await isRefused(batch(many), sdk.TooManyEntriesInBatchRequest, 400);
    const large = [1, 2, 3].map((n) => ({ Id: `e${n}`, MessageBody: "x".repeat(400_000) }));
    await isRefused(batch(large), sdk.BatchRequestTooLong, 400);
    assert.deepEqual(await depth(QueueUrl), [0, 0]);
  },

  async "a receive that waits is woken by a send"() {
    const QueueUrl = await newQueue();
    const began = performance.now();
    const waiting = receive(QueueUrl);
    await sleep(500);
    await sqs.sendMessage({ QueueUrl, MessageBody: "late" });
    const [message] = await waiting;
    const waited = performance.now() - began;
    assert.equal(message.Body, "late");
    assert.ok(waited > 400 && waited < 15_000, `woken after ${waited} ms`);
  },

  async "a receive that is given up takes nothing with it"() {
    const QueueUrl = await newQueue();
    for (let round = 0; round < 3; round += 1) {
      const abort = new AbortController();
      const asked = { QueueUrl, WaitTimeSeconds: 20 };
      const waiting = sqs.receiveMessage(asked, { abortSignal: abort.signal });
      await sleep(300);
      abort.abort();
      await assert.rejects(waiting, { name: "AbortError" });
    }
    // The server sees the end of a connection when it looks, which is soon.
    await sleep(300);
    await sqs.sendMessage({ QueueUrl, MessageBody: "m" });
    assert.deepEqual(await depth(QueueUrl), [1, 0]);
    const [message] = await receive(QueueUrl, { MessageSystemAttributeNames: ["All"] });
    assert.equal(message.Attributes.ApproximateReceiveCount, "1");
  },

  async "an empty receive has no messages"() {
    const QueueUrl = await newQueue();
    const began = performance.now();
    assert.equal((await sqs.receiveMessage({ QueueUrl, WaitTimeSeconds: 1 })).Messages, undefined);
    assert.ok(performance.now() - began > 800);
  },

  async "errors have their classes"() {
    const QueueUrl = await newQueue();
    const QueueName = QueueUrl.split("/").pop();
    const none = { QueueUrl: `${QueueUrl}-not` };
    await isRefused(sqs.getQueueUrl({ QueueName: `${QueueName}-not` }), sdk.QueueDoesNotExist, 400);
    await isRefused(sqs.sendMessage({ ...none, MessageBody: "m" }), sdk.QueueDoesNotExist, 400);
    await isRefused(sqs.receiveMessage(none), sdk.QueueDoesNotExist, 400);
    const other = { QueueName, Attributes: { DelaySeconds: "9" } };
    await isRefused(sqs.createQueue(other), sdk.QueueNameExists, 400);
    const create = (Attributes) => sqs.createQueue({ QueueName: `${QueueName}-2`, Attributes });
    await isRefused(create({ Colour: "blue" }), sdk.InvalidAttributeName, 400);
    await isRefused(create({ DelaySeconds: "901" }), sdk.InvalidAttributeValue, 400);
    await isRefused(sqs.sendMessage({ QueueUrl, MessageBody: "\u0001" }), sdk.InvalidMessageContents, 400);
    await isRefused(sqs.deleteMessage({ QueueUrl, ReceiptHandle: "x" }), sdk.ReceiptHandleIsInvalid, 404);
    await isRefused(sqs.receiveMessage({ QueueUrl, MaxNumberOfMessages: 11 }), "InvalidParameterValue", 400);
    await sqs.purgeQueue({ QueueUrl });
    await isRefused(sqs.purgeQueue({ QueueUrl }), sdk.PurgeQueueInProgress, 403);
    const SourceArn = "arn:aws:sqs:us-east-1:000000000000:none";
    await isRefused(sqs.listMessageMoveTasks({ SourceArn }), sdk.ResourceNotFoundException, 404);
  },

  async "a message that is visible is not in flight"() {
    const QueueUrl = await newQueue();
    await sqs.sendMessage({ QueueUrl, MessageBody: "m" });
    const [{ ReceiptHandle }] = await receive(QueueUrl);
    await sqs.changeMessageVisibility({ QueueUrl, ReceiptHandle, VisibilityTimeout: 0 });
    const again = { QueueUrl, ReceiptHandle, VisibilityTimeout: 5 };
    await isRefused(sqs.changeMessageVisibility(again), sdk.MessageNotInflight, 400);
  },

  async "a group keeps its order, and its numbers rise"() {
    const QueueUrl = await newFifoQueue();
    const sent = [];
    for (const n of [0, 1, 2]) {
      sent.push(await sqs.sendMessage({ QueueUrl, MessageBody: `m${n}`, MessageGroupId: "g" }));
    }
    const numbers = sent.map(({ SequenceNumber }) => BigInt(SequenceNumber));
    assert.ok(numbers[0] < numbers[1] && numbers[1] < numbers[2], numbers.join());
    const asked = { MessageSystemAttributeNames: ["SequenceNumber", "MessageGroupId", "MessageDeduplicationId"] };
    const messages = await receive(QueueUrl, asked);
    assert.deepEqual(messages.map(({ Body }) => Body), ["m0", "m1", "m2"]);
    assert.deepEqual(messages.map(({ Attributes }) => BigInt(Attributes.SequenceNumber)), numbers);
    assert.deepEqual(Object.keys(messages[0].Attributes).sort(), [...asked.MessageSystemAttributeNames].sort());
  },

  async "duplicates are known by id, and a receive can be made again"() {
    const QueueUrl = await newFifoQueue();
    const send = (MessageBody) =>
      sqs.sendMessage({ QueueUrl, MessageBody, MessageGroupId: "g", MessageDeduplicationId: "id" });
    // The digest is that of the body which was sent this time: the SDK would refuse the first one's.
    const [first, second] = [await send("one"), await send("another")];
    assert.deepEqual([second.MessageId, second.SequenceNumber], [first.MessageId, first.SequenceNumber]);
    const attempt = { ReceiveRequestAttemptId: "once" };
    assert.deepEqual(await receive(QueueUrl, attempt), await receive(QueueUrl, attempt));
    await isRefused(sqs.sendMessage({ QueueUrl, MessageBody: "m" }), "MissingParameter", 400);
  },

  async "queues are listed page by page"() {
    const prefix = `page-${randomUUID()}`;
    const made = [];
    for (const n of [0, 1, 2]) made.push((await sqs.createQueue({ QueueName: `${prefix}-${n}` })).QueueUrl);
    const listed = [];
    for await (const page of sdk.paginateListQueues({ client: sqs, pageSize: 2 }, { QueueNamePrefix: prefix })) {
      listed.push(...(page.QueueUrls ?? []));
    }
    assert.deepEqual(listed, made);
  },
};

async function bounded(run) {
  const abort = new AbortController();
  const late = sleep(CASE_MS_MAX, undefined, { signal: abort.signal }).then(() => assert.fail("it took too long"));
  try {
    await Promise.race([run(), late]);
  } finally {
    abort.abort();
    late.catch(() => {});
  }
}

// What a failed case leaves behind may fail as well, with nobody left to hear of it.
process.on("unhandledRejection", () => {});

const waiting = Object.entries(cases);
let [passed, failed] = [0, 0];

async function work() {
  for (let next = waiting.shift(); next; next = waiting.shift()) {
    const [name, run] = next;
    try {
      await bounded(run);
      passed += 1;
      console.log(`ok   @aws-sdk/client-sqs ${version}: ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAIL @aws-sdk/client-sqs ${version}: ${name}: ${error.name}`);
      console.error(error);
    }
  }
}

await Promise.all(Array.from({ length: AT_ONCE }, work));
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
