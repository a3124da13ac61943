-- One row. commit_seq and clock_us are written once per group commit on SQLite; PostgreSQL has its own of both
-- and never touches this row while serving: it would be one hot row for every node.
CREATE TABLE meta (
    id BIGINT NOT NULL PRIMARY KEY CHECK (id = 1),
    database_id BYTEA NOT NULL,
    commit_seq BIGINT NOT NULL,
    clock_us BIGINT NOT NULL,
    probe_us BIGINT NOT NULL
);
