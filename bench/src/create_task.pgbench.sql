-- One create_task, as the product sends it: the role and the tenant of the transaction, then the task and its receipt.
-- pgbench takes a colon and a letter for a variable even inside a string, hence chr(58). Ids begin with the time, as the product's do, so that both sides fill the indexes in the same order.
\set low random(1, 9000000000000000000)
BEGIN;
SET LOCAL ROLE waybill_app;
SET LOCAL app.tenant_id = '1';
INSERT INTO tasks (tenant, task_id, status, type, payload, owner, owner_instance, requirements, priority, attempt,
    max_attempts, retry_backoff_s, idempotency_key, created_at, updated_at, next_eligible_at, assigned_receipt, needs,
    held, instance, epoch, renewals, expiries, progress_receipts)
VALUES (
    1,
    int8send((extract(epoch FROM clock_timestamp()) * 1000000)::bigint) || int8send(:low::bigint),
    'queued',
    'echo',
    '{"n": 1000000001,"text": "resize the picture to 800 x 600, keep the colour profile, answer with its address"}',
    'human' || chr(58) || 'admin', NULL, '{}', 0, 0, 3, 30,
    'p-' || :client_id::bigint::text || '-' || :low::bigint::text,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    int8send((extract(epoch FROM clock_timestamp()) * 1000000)::bigint) || int8send(:low::bigint),
    decode('6d3b9f21c4e05a7788f1d2c3b4a59687', 'hex'), 0, 'bench', 0, 0, 0, 0
)
ON CONFLICT (tenant, owner, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING;
INSERT INTO receipts (tenant, receipt_id, receipt_type, sender, addressee, task_id, parents, body, instance,
    open, created_at)
VALUES (
    1,
    int8send((extract(epoch FROM clock_timestamp()) * 1000000)::bigint) || int8send(:low::bigint),
    'task.assigned', 'human' || chr(58) || 'admin', 'human' || chr(58) || 'admin',
    int8send((extract(epoch FROM clock_timestamp()) * 1000000)::bigint) || int8send(:low::bigint),
    '',
    '{"instructions": {"type": "echo"},"requirements": {},"result_delivery": {"mode": "retrieve","operation": "get_task"},"schema_version": "1","timeouts": {"lease_ttl": 300}}',
    'bench',
    1,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
);
COMMIT;
