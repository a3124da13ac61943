-- Who has been here, and how often. Written by bootstrap, and at most once a minute for those who only read.
CREATE TABLE relationships (
    tenant BIGINT NOT NULL,
    principal TEXT NOT NULL,
    instance TEXT,
    first_seen_at BIGINT NOT NULL,
    last_seen_at BIGINT NOT NULL,
    sessions_count BIGINT NOT NULL,
    PRIMARY KEY (tenant, principal)
);

-- In the order of feeds: by seq alone a page could pass an obligation that is committed after a later one.
DROP INDEX receipts_open;
CREATE INDEX receipts_open ON receipts (tenant, addressee, xact, seq) WHERE open = 1;
