-- Receipts that have left the ledger's own table: the same rows, moved and not rewritten, at the place (xact, seq) they had
-- there. Nothing that creates or ends a task writes here, so the indexes cost it nothing.
CREATE TABLE archived_receipts (
    tenant BIGINT NOT NULL,
    xact BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    receipt_id BYTEA NOT NULL,
    receipt_type TEXT NOT NULL,
    sender TEXT NOT NULL,
    addressee TEXT NOT NULL,
    task_id BYTEA,
    lease_id BYTEA,
    schedule_id TEXT,
    parents BYTEA NOT NULL,
    body TEXT NOT NULL,
    instance TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    delivered_at BIGINT,
    archived_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, xact, seq)
);
CREATE INDEX archived_receipts_by_addressee ON archived_receipts (tenant, addressee, xact, seq);
CREATE INDEX archived_receipts_by_task ON archived_receipts (tenant, task_id, xact, seq) WHERE task_id IS NOT NULL;

-- From a receipt's id to its place in the archive.
CREATE TABLE receipt_archive (
    tenant BIGINT NOT NULL,
    receipt_id BYTEA NOT NULL,
    xact BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    PRIMARY KEY (tenant, receipt_id)
);
