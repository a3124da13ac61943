-- The catalog. `attributes` holds what was set, as a JSON object of texts with sorted names; what is absent has its
-- default. A purge or a new queue of the same name gets a new generation, and the handles of the old one mean
-- nothing.
CREATE TABLE queues (
    tenant BIGINT NOT NULL,
    name TEXT NOT NULL,
    generation BIGINT NOT NULL,
    attributes TEXT NOT NULL,
    tags TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    modified_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, name)
);

-- Where the messages of one generation of a queue are. `head`, `seen` and `mark` are numbers of messages within the
-- part: every message below `head` has a flight or is gone. The others say how far `head` may move (flights.rs).
-- `crowded` is 1 when the queue was found with as many messages in flight as it may have.
CREATE TABLE parts (
    part {id},
    tenant BIGINT NOT NULL,
    queue TEXT NOT NULL,
    generation BIGINT NOT NULL,
    partition BIGINT NOT NULL,
    head BIGINT NOT NULL DEFAULT 0,
    seen BIGINT NOT NULL DEFAULT 0,
    mark BIGINT NOT NULL DEFAULT 0,
    mark_xact BIGINT NOT NULL DEFAULT 0,
    crowded BIGINT NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX parts_of_queue ON parts (tenant, queue, generation, partition);

-- Written once and never changed. `mid` is the part times 2^40 plus the message's number, so a part's messages lie
-- together in the order in which they were sent.
CREATE TABLE messages (
    mid {rowid},
    tenant BIGINT NOT NULL,
    id BYTEA NOT NULL,
    body TEXT NOT NULL,
    md5 BYTEA NOT NULL,
    attributes TEXT,
    trace TEXT,
    sent_at BIGINT NOT NULL,
    sender TEXT NOT NULL,
    grp TEXT
);

-- The numbers of messages on PostgreSQL: a row that counts would be locked by every send. SQLite counts from the
-- rows.
{postgres} CREATE SEQUENCE message_numbers MAXVALUE 1099511627775;
{postgres} GRANT USAGE ON SEQUENCE message_numbers TO waybill_app, waybill_system;

-- Messages that were received or are delayed, until they are deleted. A message without a flight was never received.
CREATE TABLE flights (
    mid {rowid},
    tenant BIGINT NOT NULL,
    part BIGINT NOT NULL,
    visible_at BIGINT NOT NULL,
    token BYTEA,
    receives BIGINT NOT NULL,
    first_at BIGINT
);
CREATE INDEX flights_due ON flights (part, visible_at);
