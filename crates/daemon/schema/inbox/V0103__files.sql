-- Files that this member has shared or was told of, with the key that opens each.
CREATE TABLE files (
    file_id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    sha256 TEXT NOT NULL,
    secret BYTEA NOT NULL,
    -- NULL for one that this member has shared itself.
    sender_pubkey TEXT,
    topic TEXT,
    client_message_id TEXT,
    known_at BIGINT NOT NULL,
    -- NULL for one that is kept until it is removed.
    expires_at BIGINT
);
CREATE INDEX files_by_known_at ON files (known_at);
