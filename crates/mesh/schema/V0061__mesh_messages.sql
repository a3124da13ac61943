-- `epoch` is the key that posts are made with, 0 while there is none. `pending_epoch` is the one that is being made. While a topic
-- is `blocked` a member that is no longer to read has the present key, and nothing is posted.
CREATE TABLE mesh_topics (
    tenant BIGINT NOT NULL,
    mesh_id BYTEA NOT NULL,
    topic TEXT NOT NULL,
    created_by BYTEA NOT NULL,
    created_at BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    pending_epoch BIGINT,
    blocked BIGINT NOT NULL,
    PRIMARY KEY (tenant, mesh_id, topic)
);

-- A subscriber reads what was posted after `since_seq`.
CREATE TABLE mesh_subscriptions (
    tenant BIGINT NOT NULL,
    mesh_id BYTEA NOT NULL,
    topic TEXT NOT NULL,
    member_id BYTEA NOT NULL,
    since_seq BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, mesh_id, topic, member_id)
);
CREATE INDEX mesh_subscriptions_of_member ON mesh_subscriptions (tenant, mesh_id, member_id, topic);

-- The key of an epoch, sealed for one member.
CREATE TABLE mesh_epoch_boxes (
    tenant BIGINT NOT NULL,
    mesh_id BYTEA NOT NULL,
    topic TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    member_id BYTEA NOT NULL,
    minter_key BYTEA NOT NULL,
    epoch_box TEXT NOT NULL,
    PRIMARY KEY (tenant, mesh_id, topic, epoch, member_id)
);
CREATE INDEX mesh_epoch_boxes_of_member ON mesh_epoch_boxes (tenant, mesh_id, member_id, topic, epoch);

-- An id is used if and only if it has a row here, which is written in the transaction that accepts its message. Rows go at
-- `expires_at`, which is NULL where ids are kept for ever; messages go by themselves, and leave `history_available` at 0.
CREATE TABLE mesh_dedupe (
    tenant BIGINT NOT NULL,
    mesh_id BYTEA NOT NULL,
    client_message_id TEXT NOT NULL,
    message_id BYTEA NOT NULL,
    history_id BYTEA NOT NULL,
    sender BYTEA NOT NULL,
    fingerprint BYTEA NOT NULL,
    destination_kind TEXT NOT NULL,
    destination_ref TEXT NOT NULL,
    first_seen_at BIGINT NOT NULL,
    expires_at BIGINT,
    history_available BIGINT NOT NULL,
    PRIMARY KEY (tenant, mesh_id, client_message_id)
);
CREATE INDEX mesh_dedupe_over ON mesh_dedupe (expires_at) WHERE expires_at IS NOT NULL;

-- `dedupe_until` is the end of the row that it was accepted with: from then on it may stand alone.
CREATE TABLE mesh_messages (
    number {id},
    tenant BIGINT NOT NULL,
    mesh_id BYTEA NOT NULL,
    message_id BYTEA NOT NULL,
    client_message_id TEXT NOT NULL,
    seq BIGINT NOT NULL,
    sender BYTEA NOT NULL,
    sender_key BYTEA NOT NULL,
    envelope TEXT NOT NULL,
    mentions BIGINT NOT NULL,
    dedupe_until BIGINT,
    created_at BIGINT NOT NULL
);
CREATE UNIQUE INDEX mesh_messages_by_id ON mesh_messages (tenant, mesh_id, message_id);
CREATE INDEX mesh_messages_old ON mesh_messages (created_at);

-- What was accepted, in the order of commits. A post has a topic and a direct message a recipient.
CREATE TABLE mesh_history (
    tenant BIGINT NOT NULL,
    mesh_id BYTEA NOT NULL,
    seq BIGINT NOT NULL,
    history_id BYTEA NOT NULL,
    message_id BYTEA NOT NULL,
    sender BYTEA NOT NULL,
    topic TEXT,
    recipient BYTEA,
    at BIGINT NOT NULL,
    PRIMARY KEY (tenant, mesh_id, seq)
);

-- A message that a member has not acknowledged.
CREATE TABLE mesh_deliveries (
    tenant BIGINT NOT NULL,
    mesh_id BYTEA NOT NULL,
    member_id BYTEA NOT NULL,
    seq BIGINT NOT NULL,
    message_id BYTEA NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, mesh_id, member_id, seq)
);
CREATE INDEX mesh_deliveries_old ON mesh_deliveries (created_at);

CREATE TABLE mesh_mentions (
    tenant BIGINT NOT NULL,
    mesh_id BYTEA NOT NULL,
    message_id BYTEA NOT NULL,
    member_id BYTEA NOT NULL,
    PRIMARY KEY (tenant, mesh_id, message_id, member_id)
);
CREATE INDEX mesh_mentions_of_member ON mesh_mentions (tenant, mesh_id, member_id, message_id);

-- How far the nightly check has come: the mesh, which of its tables, and the last key that was looked at.
CREATE TABLE mesh_check_walk (
    id BIGINT NOT NULL PRIMARY KEY CHECK (id = 1),
    walked_tenant BIGINT NOT NULL,
    mesh_id BYTEA NOT NULL,
    walk BIGINT NOT NULL,
    after BYTEA NOT NULL
);
