-- An idempotency key belongs to the owner of its task: the same key of another principal is another key.
DROP INDEX tasks_by_key;
CREATE UNIQUE INDEX tasks_by_key ON tasks (tenant, owner, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- What a schedule's task says about the schedule names no other receipt of the task, so it is found by the task itself. Of
-- all receipts these alone have a schedule: the index costs the others nothing.
CREATE INDEX receipts_of_schedules ON receipts (tenant, task_id) WHERE schedule_id IS NOT NULL;

-- Which runs of a principal were here lately, instead of the latest alone: each has sessions of its own. A JSON object of their
-- latest contacts, by name; one that was silent for longer than a session lasts is forgotten.
ALTER TABLE relationships DROP COLUMN instance;
ALTER TABLE relationships ADD COLUMN instances TEXT NOT NULL DEFAULT '{}';
