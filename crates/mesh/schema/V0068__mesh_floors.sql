-- Whoever leaves a topic or is revoked keeps the keys it was given: from the next key on none of those is taken. `floor_epoch` is the
-- oldest epoch that posts may be made with, and `floor_pending` says that the key that is being made raises it.
ALTER TABLE mesh_topics ADD COLUMN floor_epoch BIGINT NOT NULL DEFAULT 0;
ALTER TABLE mesh_topics ADD COLUMN floor_pending BIGINT NOT NULL DEFAULT 0;
