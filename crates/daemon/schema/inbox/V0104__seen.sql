-- Ids of messages that were here and were removed. The broker may hold a message for longer than the inbox does, and deliver it
-- again: by its id it is known as a repeat. `id` rises, so that the oldest have the lowest.
CREATE TABLE inbox_seen (
    id {id},
    client_message_id TEXT NOT NULL UNIQUE,
    removed_at BIGINT NOT NULL
);
