-- Every message that a local program has handed over. Rows are never deleted: an id that was taken once stays taken.
CREATE TABLE outbox (
    id {id},
    client_message_id TEXT NOT NULL UNIQUE,
    -- Of the caller's plaintext request; it decides what a second request under the same id means.
    request_fingerprint BYTEA NOT NULL,
    -- Of the envelope; what the broker compares.
    wire_fingerprint BYTEA NOT NULL,
    -- The plaintext request, for inspection and patches. NULL once pruned.
    payload TEXT,
    -- What is sent, the same bytes at every attempt. NULL once pruned.
    envelope TEXT,
    destination_kind TEXT NOT NULL,
    destination_ref TEXT NOT NULL,
    key_id TEXT,
    epoch BIGINT,
    enqueued_at BIGINT NOT NULL,
    attempts BIGINT NOT NULL DEFAULT 0,
    next_attempt_at BIGINT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('pending', 'inflight', 'done', 'dead', 'aborted')),
    -- 1 for the oldest message of its destination that is pending or inflight; only that one may be sent.
    is_head BIGINT NOT NULL,
    last_error TEXT,
    delivered_at BIGINT,
    broker_message_id TEXT,
    history_id TEXT,
    aborted_at BIGINT,
    aborted_by TEXT,
    superseded_by BIGINT
);
CREATE INDEX outbox_by_status ON outbox (status, next_attempt_at);
CREATE INDEX outbox_aborted ON outbox (aborted_at) WHERE status = 'aborted';
-- The line of each destination, in the order of arrival.
CREATE INDEX outbox_lines ON outbox (destination_kind, destination_ref, id) WHERE status IN ('pending', 'inflight');
-- What may be sent next, without reading the lines behind. Statements name it: the planner would take the index over all rows
-- of a status, which has as many pending ones as there are in all lines.
CREATE INDEX outbox_heads ON outbox (status, next_attempt_at) WHERE is_head = 1;
-- From a message to the one that it replaced.
CREATE INDEX outbox_superseded ON outbox (superseded_by) WHERE superseded_by IS NOT NULL;
-- Which member has sealed what is here. One row.
CREATE TABLE outbox_owner (
    id BIGINT NOT NULL PRIMARY KEY CHECK (id = 1),
    member TEXT NOT NULL
);
