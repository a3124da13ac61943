-- Since when a sweep's runs have ended before their work did; nothing while it keeps up.
ALTER TABLE sweeps ADD COLUMN behind_since BIGINT;

CREATE INDEX jobs_dead ON jobs (kind) WHERE state = 'dead';
