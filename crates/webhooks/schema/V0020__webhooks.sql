-- Endpoints that want to be told of receipts. `secret` is boxed under the server's key and bound to the row. `kinds` has the
-- types of receipts it wants, in a comma-separated list; NULL for all.
-- Its deliveries stand in one line, and the row is the head of it: `due_at` is when a runner may take the line, which is when
-- the first delivery is due, the end of the claim while it is `held`, and NULL when nothing waits. `claim` is raised by every
-- claim. `failures` counts turns in a row in which nobody answered; `ailing` is 1 while there are any: such lines have
-- runners of their own, so that they keep none from the others. `failing_since` is the first failure since the latest success.
CREATE TABLE webhooks (
    tenant BIGINT NOT NULL,
    webhook_id BYTEA NOT NULL,
    url TEXT NOT NULL,
    kinds TEXT,
    description TEXT,
    secret BYTEA NOT NULL,
    created_at BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    disabled_at BIGINT,
    disabled_reason TEXT,
    due_at BIGINT,
    held BIGINT NOT NULL DEFAULT 0,
    claim BIGINT NOT NULL DEFAULT 0,
    ailing BIGINT NOT NULL DEFAULT 0,
    failures BIGINT NOT NULL DEFAULT 0,
    failing_since BIGINT,
    last_delivered_at BIGINT,
    PRIMARY KEY (tenant, webhook_id)
);
CREATE INDEX webhooks_due ON webhooks (ailing, due_at) WHERE due_at IS NOT NULL;

-- One row per endpoint and receipt. `next_at` is the next attempt, NULL once it is delivered or has failed. `keep_until` is when
-- it is given up while it is pending, and when the row goes once it has ended.
CREATE TABLE webhook_deliveries (
    tenant BIGINT NOT NULL,
    webhook_id BYTEA NOT NULL,
    delivery_id BYTEA NOT NULL,
    receipt_id BYTEA NOT NULL,
    receipt_type TEXT NOT NULL,
    state TEXT NOT NULL,
    attempts BIGINT NOT NULL,
    next_at BIGINT,
    last_attempt_at BIGINT,
    last_status BIGINT,
    last_error TEXT,
    created_at BIGINT NOT NULL,
    ended_at BIGINT,
    keep_until BIGINT NOT NULL,
    PRIMARY KEY (tenant, webhook_id, delivery_id)
);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (tenant, webhook_id, next_at) WHERE next_at IS NOT NULL;
CREATE INDEX webhook_deliveries_over ON webhook_deliveries (keep_until);

-- What was written before there were webhooks concerns none.
INSERT INTO feeds (name, xact, seq, updated_at)
    SELECT 'webhooks.fan_out', r.xact, r.seq, r.created_at FROM receipts r ORDER BY r.seq DESC LIMIT 1;
