-- The catalog. `attributes` holds what was set, as a JSON object of texts with sorted names; what is absent has its
-- default. A purge or a new queue of the same name gets a new generation, and the handles of the old one mean
-- nothing. `incarnation` is the generation it was made with, which a purge leaves as it is. `dead_letter` is the name of
-- the queue that the RedrivePolicy points to. `spread` is the number of the last partition that the groups of a FIFO
-- queue are spread over: one less than a power of two, and 0 for almost every queue.
CREATE TABLE queues (
    tenant BIGINT NOT NULL,
    name TEXT NOT NULL,
    generation BIGINT NOT NULL,
    incarnation BIGINT NOT NULL,
    spread BIGINT NOT NULL DEFAULT 0,
    attributes TEXT NOT NULL,
    tags TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    modified_at BIGINT NOT NULL,
    purged_at BIGINT,
    dead_letter TEXT,
    PRIMARY KEY (tenant, name)
);
CREATE INDEX queues_by_dead_letter ON queues (tenant, dead_letter, name) WHERE dead_letter IS NOT NULL;

-- What a program must be able to do before it may serve this database. A row is added by whoever first stores something of
-- the tenant's that needs it, and stays.
CREATE TABLE required_capabilities (
    tenant BIGINT NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (tenant, name)
);

-- Where the messages of one generation of a queue are: one part for each of its partitions. `head`, `seen`, `mark`,
-- `counted`, `counting` and `swept` are numbers of messages within the part: every message below `head` has a flight or
-- is gone, and `seen` and `mark` say how far `head` may move (flights.rs). `crowded` is 1 when the queue was found with as many messages in flight as it
-- may have. `total` counts the messages below `counted` (counts.rs). `mixed` is 1 when the part holds messages that
-- are older than their number tells, which are looked for from `swept` on (sweeps/upkeep.rs). `next` is the number of
-- the next message of a FIFO queue on SQLite, where no number may come again.
-- A purge or the end of the queue sets `dead_at`; at `drain_at` somebody looks what is left. A part that belongs to
-- no queue may be taken again.
CREATE TABLE parts (
    part {id},
    tenant BIGINT NOT NULL,
    queue TEXT,
    generation BIGINT NOT NULL,
    partition BIGINT NOT NULL,
    head BIGINT NOT NULL DEFAULT 0,
    seen BIGINT NOT NULL DEFAULT 0,
    mark BIGINT NOT NULL DEFAULT 0,
    mark_xact BIGINT NOT NULL DEFAULT 0,
    crowded BIGINT NOT NULL DEFAULT 0,
    total BIGINT NOT NULL DEFAULT 0,
    counted BIGINT NOT NULL DEFAULT 0,
    counting BIGINT NOT NULL DEFAULT 0,
    counting_xact BIGINT NOT NULL DEFAULT 0,
    mixed BIGINT NOT NULL DEFAULT 0,
    swept BIGINT NOT NULL DEFAULT 0,
    next BIGINT NOT NULL DEFAULT 0,
    dead_at BIGINT,
    drain_at BIGINT
);
CREATE UNIQUE INDEX parts_of_queue ON parts (tenant, queue, generation, partition);
CREATE INDEX parts_to_drain ON parts (drain_at) WHERE drain_at IS NOT NULL;

-- Written once and never changed. `mid` is the part times 2^40 plus the message's number, so a part's messages lie
-- together in the order in which they were sent. `source` is the queue that a dead letter comes from, `dedup` the
-- deduplication id in a FIFO queue.
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
    grp TEXT,
    source TEXT,
    dedup TEXT
);

-- The numbers of messages on PostgreSQL: a row that counts would be locked by every send. SQLite counts from the
-- rows.
{postgres} CREATE SEQUENCE message_numbers MAXVALUE 1099511627775;
{postgres} GRANT USAGE ON SEQUENCE message_numbers TO waybill_app, waybill_system;

-- Messages that were received or are delayed, until they are deleted. A message without a flight was never received.
-- `taken_at` is the latest receive, from which on its visibility can be put off for twelve hours.
CREATE TABLE flights (
    mid {rowid},
    tenant BIGINT NOT NULL,
    part BIGINT NOT NULL,
    visible_at BIGINT NOT NULL,
    token BYTEA,
    receives BIGINT NOT NULL,
    first_at BIGINT,
    taken_at BIGINT
);
CREATE INDEX flights_due ON flights (part, visible_at);

-- On PostgreSQL: messages that are gone and may be in a total that does not know it yet (counts.rs).
CREATE TABLE departures (
    mid {rowid},
    tenant BIGINT NOT NULL
);

-- Dead letters on their way to where they came from, or elsewhere. `active` is 1 while it runs, of which a source has
-- one at a time. `paced_to` is the time up to which the messages per second are used up.
CREATE TABLE move_tasks (
    tenant BIGINT NOT NULL,
    task BYTEA NOT NULL,
    source TEXT NOT NULL,
    destination TEXT,
    per_second BIGINT,
    status TEXT NOT NULL,
    active BIGINT NOT NULL,
    moved BIGINT NOT NULL,
    to_move BIGINT NOT NULL,
    reason TEXT,
    started_at BIGINT NOT NULL,
    paced_to BIGINT NOT NULL,
    PRIMARY KEY (tenant, task)
);
CREATE UNIQUE INDEX move_tasks_active ON move_tasks (tenant, source) WHERE active = 1;
CREATE INDEX move_tasks_by_source ON move_tasks (tenant, source, started_at);
CREATE INDEX move_tasks_due ON move_tasks (paced_to) WHERE active = 1;

-- FIFO queues: the groups that have messages. `head` is the first of them, which can be received from `ready_at` on: a
-- group with messages in flight waits until all of those are visible again or gone. Whoever adds, takes, changes or
-- deletes messages of a group locks its row.
CREATE TABLE fifo_groups (
    tenant BIGINT NOT NULL,
    part BIGINT NOT NULL,
    grp TEXT NOT NULL,
    head BIGINT,
    ready_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, part, grp)
);
CREATE INDEX fifo_groups_ready ON fifo_groups (part, ready_at, head);

-- The messages of each group in their order.
CREATE TABLE fifo_lines (
    tenant BIGINT NOT NULL,
    part BIGINT NOT NULL,
    grp TEXT NOT NULL,
    mid BIGINT NOT NULL,
    PRIMARY KEY (tenant, part, grp, mid)
);

-- Deduplication ids of the last five minutes, and what was sent under them. `scope` is the group where ids are the
-- group's own, and empty where they are the queue's.
CREATE TABLE fifo_duplicates (
    tenant BIGINT NOT NULL,
    part BIGINT NOT NULL,
    scope TEXT NOT NULL,
    dedup TEXT NOT NULL,
    id BYTEA NOT NULL,
    mid BIGINT NOT NULL,
    until BIGINT NOT NULL,
    PRIMARY KEY (tenant, part, scope, dedup)
);
CREATE INDEX fifo_duplicates_over ON fifo_duplicates (until);

-- What receives have answered that gave an id, to be answered again. `mids` is a JSON list.
CREATE TABLE fifo_attempts (
    tenant BIGINT NOT NULL,
    part BIGINT NOT NULL,
    attempt TEXT NOT NULL,
    token BYTEA NOT NULL,
    visible_at BIGINT NOT NULL,
    mids TEXT NOT NULL,
    until BIGINT NOT NULL,
    PRIMARY KEY (tenant, part, attempt)
);
CREATE INDEX fifo_attempts_over ON fifo_attempts (until);
