-- One SendMessage, as the product sends it: the role and the tenant of the transaction, the fence and the queue, then the message.
-- pgbench takes a colon and a letter for a variable even inside a string, hence chr(58).
\set low random(1, 9000000000000000000)
BEGIN;
SET LOCAL ROLE waybill_app;
SET LOCAL app.tenant_id = '1';
SELECT pg_advisory_xact_lock_shared(hashtextextended('bench', 1)) IS NOT NULL;
SELECT q.attributes, q.generation, q.incarnation, q.spread, p.part, p.partition, p.head, p.seen, p.mark, p.mark_xact,
    p.crowded, p.counted, p.mixed, CAST(NULL AS BIGINT)
FROM queues q
LEFT JOIN parts p ON p.tenant = 1 AND p.queue = q.name AND p.generation = q.generation AND p.partition = (0 & q.spread)
WHERE q.tenant = 1 AND q.name = 'bench';
INSERT INTO messages (mid, tenant, id, body, md5, attributes, trace, sent_at, sender, grp)
SELECT next.mid, 1, int8send((extract(epoch FROM clock_timestamp()) * 1000000)::bigint) || int8send(:low::bigint),
    repeat('m', 256), decode('6d3b9f21c4e05a7788f1d2c3b4a59687', 'hex'), NULL, NULL,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 'agent' || chr(58) || 'bench', NULL
FROM (SELECT CASE WHEN pg_current_xact_id() IS NOT NULL
    THEN ((SELECT part FROM parts WHERE queue = 'bench') << 40) + nextval('message_numbers') END AS mid) AS next
WHERE next.mid IS NOT NULL;
COMMIT;
