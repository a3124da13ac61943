-- One row per named sweep. `fence` is raised by every claim and looked at in the transaction of every batch, so that a
-- node that slept through its lease changes nothing. `next_at` is when it is due; what has run since is lag.
CREATE TABLE sweeps (
    name TEXT NOT NULL PRIMARY KEY,
    interval_us BIGINT NOT NULL,
    holder BYTEA NOT NULL,
    fence BIGINT NOT NULL,
    lease_until BIGINT NOT NULL,
    next_at BIGINT NOT NULL,
    last_started BIGINT NOT NULL,
    last_finished BIGINT,
    last_rows BIGINT NOT NULL,
    total_rows BIGINT NOT NULL,
    failures BIGINT NOT NULL,
    last_error TEXT
);

-- How far each effect has come in the table it follows. It moves in the transaction of what the effect writes.
CREATE TABLE feeds (
    name TEXT NOT NULL PRIMARY KEY,
    xact BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);

-- Work to be done outside of transactions. `next_at` is when a runner may take the job: its time while it is ready, the
-- end of the claim while it is running, nothing once it is done or dead. `claim` is raised by every claim.
CREATE TABLE jobs (
    tenant BIGINT NOT NULL,
    job_id BYTEA NOT NULL,
    kind TEXT NOT NULL,
    payload TEXT NOT NULL,
    state TEXT NOT NULL,
    attempts BIGINT NOT NULL,
    next_at BIGINT,
    claim BIGINT NOT NULL,
    last_error TEXT,
    created_at BIGINT NOT NULL,
    ended_at BIGINT,
    PRIMARY KEY (tenant, job_id)
);
CREATE INDEX jobs_due ON jobs (kind, next_at) WHERE next_at IS NOT NULL;
