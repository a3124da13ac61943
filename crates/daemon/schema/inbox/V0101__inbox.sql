-- Messages that have arrived, opened. Body and meta are bytes: a message may hold a NUL, which the store takes in no text.
CREATE TABLE inbox (
    id {rowid},
    client_message_id TEXT NOT NULL UNIQUE,
    broker_message_id TEXT NOT NULL,
    mesh TEXT NOT NULL,
    seq BIGINT NOT NULL,
    -- NULL for a direct message.
    topic TEXT,
    sender_pubkey TEXT NOT NULL,
    sender_name TEXT NOT NULL,
    body BYTEA NOT NULL,
    meta BYTEA,
    priority TEXT NOT NULL,
    mentioned BIGINT NOT NULL,
    received_at BIGINT NOT NULL,
    reply_to_id TEXT
);
CREATE INDEX inbox_by_received_at ON inbox (received_at);
CREATE INDEX inbox_by_topic ON inbox (topic, id);
CREATE INDEX inbox_by_sender ON inbox (sender_pubkey, id);

-- The words alone: the texts are in `inbox`, and a row leaves both in one transaction.
CREATE VIRTUAL TABLE inbox_fts USING fts5 (body, sender, topic, content = '', contentless_delete = 1);

-- Messages that no key at hand opens: an epoch whose key has not arrived, a box for a key that was archived elsewhere. They are
-- acknowledged, because the broker could only send the same bytes again, and tried anew when a key arrives.
CREATE TABLE inbox_sealed (
    client_message_id TEXT PRIMARY KEY,
    seq BIGINT NOT NULL,
    held_at BIGINT NOT NULL,
    -- The delivery as it came, as JSON.
    delivery BYTEA NOT NULL,
    reason TEXT NOT NULL
);
CREATE INDEX inbox_sealed_by_held_at ON inbox_sealed (held_at);
CREATE INDEX inbox_sealed_by_seq ON inbox_sealed (seq);

-- One row. `seq`: up to which sequence number of the mesh everything has been seen. `last_id`: the highest id that a message
-- was given; readers go on from ids, so that of a removed row is never given again.
CREATE TABLE inbox_position (
    id {rowid},
    seq BIGINT NOT NULL,
    last_id BIGINT NOT NULL
);
INSERT INTO inbox_position (id, seq, last_id) VALUES (1, 0, 0);
