-- Ids sort by creation, so a task's place in a list is its id and no index on created_at is needed.
-- `needs` is a digest of the type and the required capabilities: tasks of one digest fit the same workers.
-- `held` is 1 while the task waits for next_eligible_at, which keeps it out of the way of claims.
-- The live lease stands on the task itself: there cannot be two of them. `epoch` counts all leases there have been.
CREATE TABLE tasks (
    tenant BIGINT NOT NULL,
    task_id BYTEA NOT NULL,
    status TEXT NOT NULL,
    type TEXT NOT NULL,
    payload TEXT NOT NULL,
    owner TEXT NOT NULL,
    owner_instance TEXT,
    requirements TEXT NOT NULL,
    needs BYTEA NOT NULL,
    priority BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    max_attempts BIGINT NOT NULL,
    retry_backoff_s BIGINT NOT NULL,
    idempotency_key TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    next_eligible_at BIGINT NOT NULL,
    held BIGINT NOT NULL,
    started_at BIGINT,
    assigned_receipt BYTEA NOT NULL,
    instance TEXT NOT NULL,
    lease_id BYTEA,
    worker TEXT,
    lease_expires_at BIGINT,
    epoch BIGINT NOT NULL,
    renewals BIGINT NOT NULL,
    expiries BIGINT NOT NULL,
    progress_receipts BIGINT NOT NULL,
    PRIMARY KEY (tenant, task_id)
);
CREATE UNIQUE INDEX tasks_by_key ON tasks (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX tasks_by_owner ON tasks (tenant, owner, status, task_id);
CREATE INDEX tasks_claimable ON tasks (tenant, needs, priority DESC, created_at, task_id) WHERE status = 'queued' AND held = 0;
CREATE INDEX tasks_held ON tasks (tenant, next_eligible_at) WHERE status = 'queued' AND held = 1;
CREATE INDEX tasks_leased ON tasks (instance, lease_expires_at) WHERE lease_id IS NOT NULL;

-- Every lease there has been: who held the task, how it ended, and what to answer when its last call is repeated.
CREATE TABLE leases (
    tenant BIGINT NOT NULL,
    task_id BYTEA NOT NULL,
    epoch BIGINT NOT NULL,
    lease_id BYTEA NOT NULL,
    worker TEXT NOT NULL,
    worker_instance TEXT,
    created_at BIGINT NOT NULL,
    ended_at BIGINT,
    end_reason TEXT,
    digest BYTEA,
    next_eligible_at BIGINT,
    PRIMARY KEY (tenant, task_id, epoch)
);

-- One row per ended task. `located` is 0 while a success says neither where its work is nor that it was delivered.
CREATE TABLE results (
    tenant BIGINT NOT NULL,
    task_id BYTEA NOT NULL,
    outcome TEXT NOT NULL,
    result TEXT,
    error TEXT,
    artifacts TEXT,
    delivery_proof TEXT,
    located BIGINT NOT NULL DEFAULT 1,
    receipt_id BYTEA,
    completed_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, task_id)
);

-- The newest report of each task.
CREATE TABLE task_progress (
    tenant BIGINT NOT NULL,
    task_id BYTEA NOT NULL,
    progress TEXT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, task_id)
);

-- The ledger: rows are added and never changed, but for `open`, which is 1 while the receipt is an obligation that no
-- receipt has ended, and `delivered_at`. (xact, seq) is the order in which feeds give rows out. `parents` are the ids of
-- the receipts it refers to, 16 bytes each.
CREATE TABLE receipts (
    seq {id},
    tenant BIGINT NOT NULL,
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
    open BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    delivered_at BIGINT,
    xact BIGINT NOT NULL DEFAULT {xact}
);
CREATE UNIQUE INDEX receipts_by_id ON receipts (tenant, receipt_id);
CREATE INDEX receipts_by_addressee ON receipts (tenant, addressee, xact, seq);
CREATE INDEX receipts_open ON receipts (tenant, addressee, seq) WHERE open = 1;

-- From parent to child; the child's type stands here so that whether a parent has ended is one look into one index.
CREATE TABLE receipt_parents (
    tenant BIGINT NOT NULL,
    parent_id BYTEA NOT NULL,
    child_id BYTEA NOT NULL,
    child_type TEXT NOT NULL,
    PRIMARY KEY (tenant, parent_id, child_id)
);
