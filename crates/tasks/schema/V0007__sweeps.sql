-- Which servers share the database, and when each was last heard of.
CREATE TABLE instances (
    instance_id TEXT NOT NULL,
    first_seen BIGINT NOT NULL,
    last_seen BIGINT NOT NULL,
    PRIMARY KEY (instance_id)
);

-- Empty unless somebody edits attempts by hand, so it costs the queue nothing.
ALTER TABLE tasks ADD COLUMN exhausted_reported BIGINT NOT NULL DEFAULT 0;
CREATE INDEX tasks_exhausted ON tasks (tenant, task_id)
    WHERE status = 'queued' AND attempt >= max_attempts AND exhausted_reported = 0;

-- What the server knows of schedules, which their scheduler owns. `interval_us` is NULL for cron, whose interval is the gap
-- between its two latest runs. `overdue_at` is when its silence is reported; NULL once it was, and while nothing is expected.
CREATE TABLE schedule_watch (
    tenant BIGINT NOT NULL,
    schedule_id TEXT NOT NULL,
    owner TEXT NOT NULL,
    receipt_id BYTEA NOT NULL,
    interval_us BIGINT,
    last_run_at BIGINT,
    next_run_at BIGINT,
    enabled BIGINT NOT NULL,
    overdue_at BIGINT,
    reported_at BIGINT,
    PRIMARY KEY (tenant, schedule_id)
);
CREATE INDEX schedule_watch_overdue ON schedule_watch (overdue_at) WHERE overdue_at IS NOT NULL;

-- One link per receipt, in the order they were sealed. `content` and `parties` are digests with a salt: when a receipt's
-- text and the salt are erased, or the receipt is moved, the links still prove that nothing was dropped or put in between.
CREATE TABLE chain (
    tenant BIGINT NOT NULL,
    position BIGINT NOT NULL,
    receipt_id BYTEA NOT NULL,
    receipt_type TEXT NOT NULL,
    parents BYTEA NOT NULL,
    created_at BIGINT NOT NULL,
    salt BYTEA,
    content BYTEA NOT NULL,
    parties BYTEA NOT NULL,
    link BYTEA NOT NULL,
    PRIMARY KEY (tenant, position)
);
{postgres} CREATE INDEX receipts_in_order ON receipts (xact, seq);
