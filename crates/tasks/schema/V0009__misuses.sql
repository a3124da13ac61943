-- How often a worker has come with a lease of a task that was not its own or was over.
CREATE TABLE lease_misuses (
    tenant BIGINT NOT NULL,
    task_id BYTEA NOT NULL,
    worker TEXT NOT NULL,
    uses BIGINT NOT NULL,
    PRIMARY KEY (tenant, task_id, worker)
);
