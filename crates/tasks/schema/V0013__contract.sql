-- An idempotency key belongs to the owner of its task: the same key of another principal is another key.
DROP INDEX tasks_by_key;
CREATE UNIQUE INDEX tasks_by_key ON tasks (tenant, owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
