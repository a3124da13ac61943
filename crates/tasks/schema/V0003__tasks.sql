-- Ids sort by creation, so a task's place in a list is its id and no index on created_at is needed.
CREATE TABLE tasks (
    tenant BIGINT NOT NULL,
    task_id BYTEA NOT NULL,
    status TEXT NOT NULL,
    type TEXT NOT NULL,
    payload TEXT NOT NULL,
    owner TEXT NOT NULL,
    owner_instance TEXT,
    requirements TEXT NOT NULL,
    priority BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    max_attempts BIGINT NOT NULL,
    retry_backoff_s BIGINT NOT NULL,
    idempotency_key TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    next_eligible_at BIGINT NOT NULL,
    started_at BIGINT,
    assigned_receipt BYTEA NOT NULL,
    PRIMARY KEY (tenant, task_id)
);
CREATE UNIQUE INDEX tasks_by_key ON tasks (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX tasks_by_owner ON tasks (tenant, owner, status, task_id);

-- One row per ended task.
CREATE TABLE results (
    tenant BIGINT NOT NULL,
    task_id BYTEA NOT NULL,
    outcome TEXT NOT NULL,
    error TEXT,
    completed_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, task_id)
);

-- The ledger: rows are added and never changed, but for `open`, which is 1 while the receipt is an obligation that no
-- receipt has ended. (xact, seq) is the order in which feeds give rows out.
CREATE TABLE receipts (
    seq {id},
    tenant BIGINT NOT NULL,
    receipt_id BYTEA NOT NULL,
    receipt_type TEXT NOT NULL,
    sender TEXT NOT NULL,
    addressee TEXT NOT NULL,
    task_id BYTEA,
    body TEXT NOT NULL,
    open BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    xact BIGINT NOT NULL DEFAULT {xact}
);
CREATE UNIQUE INDEX receipts_by_id ON receipts (tenant, receipt_id);
CREATE INDEX receipts_by_addressee ON receipts (tenant, addressee, xact, seq);
CREATE INDEX receipts_open ON receipts (tenant, addressee, seq) WHERE open = 1;

-- A child ends or refers to its parents; its type stands here so that ending is one look into one index.
CREATE TABLE receipt_parents (
    tenant BIGINT NOT NULL,
    parent_id BYTEA NOT NULL,
    child_id BYTEA NOT NULL,
    child_type TEXT NOT NULL,
    PRIMARY KEY (tenant, parent_id, child_id)
);
