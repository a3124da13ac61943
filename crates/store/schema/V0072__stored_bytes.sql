-- How many bytes each tenant has stored, by kind: `rows` for what stands in rows, `blobs` for files. The sum of a tenant's slots
-- counts; one slot alone may be below zero. SQLite has one writer and one slot; on PostgreSQL each connection has its own, so that
-- writers hardly ever wait for each other.
CREATE TABLE stored_bytes (
    tenant BIGINT NOT NULL,
    kind TEXT NOT NULL,
    slot BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    PRIMARY KEY (tenant, kind, slot)
);
