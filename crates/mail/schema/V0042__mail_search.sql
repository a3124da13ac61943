-- What messages are found by: their words and marks (rules/terms.rs), written by the sender's transaction. The text itself is in
-- mail_messages alone. Words are cut by the program, so that both engines agree on them; each begins with its tenant and project.
--
-- FTS5 writes a segment per commit. The writer merges none of them (a merge in the wrong moment would hold up everybody's
-- commits); a sweep does, a little at a time. Only if that falls far behind the writer steps in.
{sqlite} CREATE VIRTUAL TABLE mail_fts USING fts5 (
    marks, subject, body, content = '', columnsize = 0, detail = full, tokenize = 'ascii'
);
{sqlite} INSERT INTO mail_fts (mail_fts, rank) VALUES ('automerge', 0);
{sqlite} INSERT INTO mail_fts (mail_fts, rank) VALUES ('crisismerge', 256);

-- Without a pending list: whoever fills it would have to write all of it into the index at once.
{postgres} CREATE TABLE mail_search (
    message BIGINT PRIMARY KEY,
    tenant BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    words TSVECTOR NOT NULL
);
{postgres} CREATE INDEX mail_search_words ON mail_search USING gin (words) WITH (fastupdate = off);

-- `@@` is not leakproof: under row-level security PostgreSQL would compare every row's tenant before it asks the index for words, and so
-- read all of them. This runs as the system role, which no policy hides rows from, and takes the tenant from where the
-- policies take it. `party` is the mark of those who may find a message.
{postgres} CREATE FUNCTION mail_find(party text, wanted text, below bigint, since bigint, until bigint, at_most bigint)
RETURNS TABLE (found bigint) LANGUAGE sql STABLE SECURITY DEFINER ROWS 20 AS $$
    WITH matching AS MATERIALIZED (
        SELECT s.message, s.created_at FROM mail_search s
        WHERE s.words @@ (party::tsquery && wanted::tsquery)
        AND s.tenant = nullif(current_setting('app.tenant_id', true), '')::bigint
    )
    SELECT message FROM matching WHERE message < below AND created_at >= since AND created_at < until
    ORDER BY message DESC LIMIT at_most
$$;
{postgres} REVOKE ALL ON FUNCTION mail_find(text, text, bigint, bigint, bigint, bigint) FROM PUBLIC;
{postgres} GRANT EXECUTE ON FUNCTION mail_find(text, text, bigint, bigint, bigint, bigint) TO waybill_app;
-- An owner of a function must be allowed to make things in its schema, for the moment in which it becomes the owner.
{postgres} DO $$
DECLARE
    own text := quote_ident(current_schema());
BEGIN
    EXECUTE 'ALTER FUNCTION mail_find(text, text, bigint, bigint, bigint, bigint) SET search_path = ' || own || ', pg_temp';
    EXECUTE 'GRANT CREATE ON SCHEMA ' || own || ' TO waybill_system';
    ALTER FUNCTION mail_find(text, text, bigint, bigint, bigint, bigint) OWNER TO waybill_system;
    EXECUTE 'REVOKE CREATE ON SCHEMA ' || own || ' FROM waybill_system';
END
$$;
