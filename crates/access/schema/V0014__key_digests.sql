-- A digest of the key under the server's own key, which is not in the database: it decides before anything is hashed.
-- Keys from before have none until they are used; one under another server key than ours counts as none.
ALTER TABLE api_keys ADD COLUMN digest BYTEA;
ALTER TABLE api_keys ADD COLUMN digest_under TEXT;

-- The id of the server key that this database goes with, so that a node with another one is told. One row.
CREATE TABLE server_key (
    id BIGINT NOT NULL PRIMARY KEY CHECK (id = 1),
    server_key_id TEXT NOT NULL,
    noted_at BIGINT NOT NULL
);
