-- Messages in the sums of what is stored (V0072). Whoever stores one counts it; they end in many ways, most of them without being
-- read, so their end is counted here.
{sqlite} CREATE TRIGGER messages_stored AFTER DELETE ON messages BEGIN
    INSERT INTO stored_bytes (tenant, kind, slot, bytes) VALUES (OLD.tenant, 'rows', 0,
        -(length(CAST(OLD.body AS BLOB)) + coalesce(length(CAST(OLD.attributes AS BLOB)), 0)))
    ON CONFLICT (tenant, kind, slot) DO UPDATE SET bytes = stored_bytes.bytes + excluded.bytes;
{sqlite} END;
{postgres} CREATE FUNCTION waybill_messages_stored() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO stored_bytes (tenant, kind, slot, bytes)
        SELECT tenant, 'rows', pg_backend_pid() % 256, -sum(octet_length(body) + coalesce(octet_length(attributes), 0))
        FROM gone GROUP BY tenant ORDER BY tenant
    ON CONFLICT (tenant, kind, slot) DO UPDATE SET bytes = stored_bytes.bytes + excluded.bytes;
    RETURN NULL;
END
$$;
{postgres} CREATE TRIGGER messages_stored AFTER DELETE ON messages REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION waybill_messages_stored();

-- Those that are there already.
{postgres} SET LOCAL ROLE waybill_system;
INSERT INTO stored_bytes (tenant, kind, slot, bytes)
    SELECT tenant, 'rows', 0, sum(octet_length(body) + coalesce(octet_length(attributes), 0))
    FROM messages WHERE 1 = 1 GROUP BY tenant
    ON CONFLICT (tenant, kind, slot) DO UPDATE SET bytes = stored_bytes.bytes + excluded.bytes;
{postgres} RESET ROLE;
