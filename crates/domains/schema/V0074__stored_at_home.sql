-- What tasks, mail and meshes have stored, in the sums of V0072. Of these only messages and files of meshes end; receipts move to the
-- archive and count there as before.
{sqlite} CREATE TRIGGER mesh_messages_stored AFTER DELETE ON mesh_messages BEGIN
    INSERT INTO stored_bytes (tenant, kind, slot, bytes) VALUES (OLD.tenant, 'rows', 0, -length(CAST(OLD.envelope AS BLOB)))
    ON CONFLICT (tenant, kind, slot) DO UPDATE SET bytes = stored_bytes.bytes + excluded.bytes;
{sqlite} END;
{sqlite} CREATE TRIGGER mesh_files_stored AFTER DELETE ON mesh_files BEGIN
    INSERT INTO stored_bytes (tenant, kind, slot, bytes) VALUES (OLD.tenant, 'blobs', 0, -OLD.size_bytes)
    ON CONFLICT (tenant, kind, slot) DO UPDATE SET bytes = stored_bytes.bytes + excluded.bytes;
{sqlite} END;
{postgres} CREATE FUNCTION waybill_mesh_messages_stored() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO stored_bytes (tenant, kind, slot, bytes)
        SELECT tenant, 'rows', pg_backend_pid() % 256, -sum(octet_length(envelope)) FROM gone GROUP BY tenant ORDER BY tenant
    ON CONFLICT (tenant, kind, slot) DO UPDATE SET bytes = stored_bytes.bytes + excluded.bytes;
    RETURN NULL;
END
$$;
{postgres} CREATE TRIGGER mesh_messages_stored AFTER DELETE ON mesh_messages REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION waybill_mesh_messages_stored();
{postgres} CREATE FUNCTION waybill_mesh_files_stored() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO stored_bytes (tenant, kind, slot, bytes)
        SELECT tenant, 'blobs', pg_backend_pid() % 256, -sum(size_bytes)::bigint FROM gone GROUP BY tenant ORDER BY tenant
    ON CONFLICT (tenant, kind, slot) DO UPDATE SET bytes = stored_bytes.bytes + excluded.bytes;
    RETURN NULL;
END
$$;
{postgres} CREATE TRIGGER mesh_files_stored AFTER DELETE ON mesh_files REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION waybill_mesh_files_stored();

-- What is there already.
{postgres} SET LOCAL ROLE waybill_system;
INSERT INTO stored_bytes (tenant, kind, slot, bytes)
    SELECT tenant, 'rows', 0, CAST(sum(bytes) AS BIGINT) FROM (
        SELECT tenant, sum(octet_length(payload)) AS bytes FROM tasks GROUP BY tenant
        UNION ALL SELECT tenant, sum(octet_length(result)) FROM results WHERE result IS NOT NULL GROUP BY tenant
        UNION ALL SELECT tenant, sum(octet_length(body)) FROM receipts GROUP BY tenant
        UNION ALL SELECT tenant, sum(octet_length(body)) FROM archived_receipts GROUP BY tenant
        UNION ALL SELECT tenant, sum(octet_length(subject) + octet_length(body)) FROM mail_messages GROUP BY tenant
        UNION ALL SELECT tenant, sum(octet_length(envelope)) FROM mesh_messages GROUP BY tenant
    ) AS counted WHERE 1 = 1 GROUP BY tenant
    ON CONFLICT (tenant, kind, slot) DO UPDATE SET bytes = stored_bytes.bytes + excluded.bytes;
INSERT INTO stored_bytes (tenant, kind, slot, bytes)
    SELECT tenant, 'blobs', 0, CAST(sum(bytes) AS BIGINT) FROM (
        SELECT tenant, sum(octet_length(content)) AS bytes FROM mail_attachments GROUP BY tenant
        UNION ALL SELECT tenant, sum(size_bytes) FROM mesh_files GROUP BY tenant
    ) AS counted WHERE 1 = 1 GROUP BY tenant
    ON CONFLICT (tenant, kind, slot) DO UPDATE SET bytes = stored_bytes.bytes + excluded.bytes;
{postgres} RESET ROLE;
