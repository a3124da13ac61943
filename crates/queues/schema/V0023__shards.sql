-- Queues whose partitions are in several stores. Home has the catalog: `shards` names the store of each partition, as a JSON
-- list in their order, and is NULL for almost every queue, all of which is in home. `here` has a bit for each partition that
-- is in this very store; NULL is all of them. `version` counts the changes of the attributes.
-- In another store than home a row is a copy of home's, which is what those who write there are fenced by: it is brought up
-- to date by whoever changes home's (shards/follow.rs). One whose queue has ended keeps its generation for a while and has
-- the incarnation 0.
ALTER TABLE queues ADD COLUMN shards TEXT;
ALTER TABLE queues ADD COLUMN here BIGINT;
ALTER TABLE queues ADD COLUMN version BIGINT NOT NULL DEFAULT 0;
CREATE INDEX queues_on_shards ON queues (tenant, name) WHERE shards IS NOT NULL;
CREATE INDEX queues_ended ON queues (modified_at) WHERE incarnation = 0;

-- In home: stores that may not have followed a change of a queue. Written together with the change, and removed when the
-- store has followed. `generation` and `version` are those of the change.
CREATE TABLE shard_changes (
    tenant BIGINT NOT NULL,
    queue TEXT NOT NULL,
    shard TEXT NOT NULL,
    generation BIGINT NOT NULL,
    version BIGINT NOT NULL,
    PRIMARY KEY (tenant, queue, shard)
);

-- Messages on their way to a queue that is in another store. They stay where they are, invisible and before all others of
-- their group, until the other store has them. `source` is the queue they are dead letters of, or NULL. `refused` is 1 when
-- there was nowhere to take a message: it is delivered once more.
CREATE TABLE transfers (
    mid {rowid},
    tenant BIGINT NOT NULL,
    part BIGINT NOT NULL,
    move BYTEA NOT NULL,
    target TEXT NOT NULL,
    source TEXT,
    source_arn TEXT,
    refused BIGINT NOT NULL DEFAULT 0,
    next_at BIGINT NOT NULL
);
CREATE INDEX transfers_due ON transfers (part, mid) WHERE refused = 0;

-- Moves that have arrived in this store, so that none arrives twice.
CREATE TABLE arrivals (
    tenant BIGINT NOT NULL,
    move BYTEA NOT NULL,
    arrived_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, move)
);
CREATE INDEX arrivals_old ON arrivals (arrived_at);
