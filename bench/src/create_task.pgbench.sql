-- One create_task, as the product sends it: the tenant is bound in the transaction, then the task and its receipt.
-- Ids begin with the time, as the product's do, so that both sides fill the indexes in the same order.
\set low random(1, 9000000000000000000)
\set tenant 1
BEGIN;
SELECT set_config('waybill.tenant', :tenant::bigint::text, true);
INSERT INTO tasks (tenant, id, type, payload, idempotency_key, status, created_at)
VALUES (
    :tenant::bigint,
    int8send((extract(epoch FROM clock_timestamp()) * 1000000)::bigint) || int8send(:low::bigint),
    'echo',
    '{"n":1000000001,"text":"resize the picture to 800 x 600, keep the colour profile, answer with its address"}',
    'p-' || :client_id::bigint::text || '-' || :low::bigint::text,
    'queued',
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
)
ON CONFLICT DO NOTHING;
INSERT INTO receipts (tenant, id, kind, body, created_at)
VALUES (
    :tenant::bigint,
    int8send((extract(epoch FROM clock_timestamp()) * 1000000)::bigint) || int8send(:low::bigint),
    'task.assigned',
    '{"type":"echo","status":"queued"}',
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
)
ON CONFLICT DO NOTHING;
COMMIT;
