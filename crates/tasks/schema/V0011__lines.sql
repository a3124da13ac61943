-- `needs` is the key of the required capabilities alone, of whatever type the task is, and empty when there are none. What was
-- queued before keeps its digest, behind an L: such keys stand together, and their tasks say what they stand for.
{postgres} SET LOCAL ROLE waybill_system;
UPDATE tasks SET needs = CAST(CAST('L' AS BYTEA) || needs AS BYTEA)
    WHERE status IN ('queued', 'leased', 'running') AND requirements LIKE '{"capabilities":%';
UPDATE tasks SET needs = CAST('' AS BYTEA)
    WHERE status IN ('queued', 'leased', 'running') AND requirements NOT LIKE '{"capabilities":%';
{postgres} RESET ROLE;

-- The lines of one type. The index tasks_claimable has those of any type.
CREATE INDEX tasks_claimable_by_type ON tasks (tenant, type, needs, priority DESC, created_at, task_id)
    WHERE status = 'queued' AND held = 0;
