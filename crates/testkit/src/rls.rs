//! A lint over PostgreSQL's catalogue: is every tenant's table really closed to other tenants?
//!
//! How row-level security is lost, each way seen in the wild: the owner of a table is not bound unless it is FORCEd; a
//! superuser and a role with BYPASSRLS never are; a policy with USING and no WITH CHECK lets rows be pushed to others; two
//! permissive policies are joined by OR; a view reads as its owner unless `security_invoker` is set; a SECURITY DEFINER
//! function runs as its owner; a unique key without the tenant tells by its error that another tenant has the value.

use tokio_postgres::Client;

pub const ROLE_APP: &str = "waybill_app";
pub const ROLE_SYSTEM: &str = "waybill_system";

/// Unique keys that do not begin with the tenant, and why they tell nothing.
const UNIQUE_WITHOUT_TENANT: &[(&str, &str)] = &[
    ("api_keys_by_id", "key ids are random and nobody chooses one"),
    ("tenants_by_id", "tenant ids are random and nobody chooses one"),
    ("tenants_by_name", "only operators, who see all tenants, choose a name"),
    ("receipts_pkey", "numbers of an identity column, which nobody chooses"),
    ("parts_pkey", "numbers of an identity column, which nobody chooses"),
    ("messages_pkey", "numbers that the server gives out, which nobody chooses"),
    ("flights_pkey", "the numbers of messages"),
    ("departures_pkey", "the numbers of messages"),
    ("transfers_pkey", "the numbers of messages"),
    ("mail_projects_pkey", "numbers of an identity column, which nobody chooses"),
    ("mail_agents_pkey", "numbers of an identity column, which nobody chooses"),
    ("mail_messages_pkey", "numbers of an identity column, which nobody chooses"),
    ("mesh_messages_pkey", "numbers of an identity column, which nobody chooses"),
    ("mesh_audit_pkey", "numbers of an identity column, which nobody chooses"),
    ("mesh_file_chunks_pkey", "numbers of an identity column, which nobody chooses"),
    ("meshes_by_id", "random ids; members name a mesh by its id alone, and the tenant is found by it"),
    ("mail_attachments_pkey", "numbers of an identity column, which nobody chooses"),
    ("mail_inbox_events_pkey", "numbers of an identity column, which nobody chooses"),
    ("mail_archive_rows_pkey", "numbers of an identity column, which nobody chooses"),
    ("mail_reservations_pkey", "numbers of an identity column, which nobody chooses"),
    ("mail_search_pkey", "the numbers of messages"),
    ("mail_products_pkey", "numbers of an identity column, which nobody chooses"),
];

/// Each rule is a query whose rows are its findings; `$1` is the app's role, `$2` the system's.
const RULES: &[&str] = &[
    // Tables.
    "SELECT t.name || ': row-level security is not both enabled and forced' FROM tables t \
     WHERE t.has_tenant AND NOT (t.relrowsecurity AND t.relforcerowsecurity)",
    "SELECT t.name || ': ' || $1 || ' may touch a table that has no tenant' FROM tables t \
     WHERE NOT t.has_tenant AND has_table_privilege($1, t.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES')",
    "SELECT t.name || ': ' || r.rolname || ' may empty it past all policies' FROM tables t, pg_roles r \
     WHERE r.rolname IN ($1, $2) AND has_table_privilege(r.oid, t.oid, 'TRUNCATE')",
    "SELECT t.name || ': everybody has a privilege on it' FROM tables t, aclexplode(t.relacl) a WHERE a.grantee = 0",
    "SELECT t.name || ': owned by the role it is guarded against' FROM tables t, pg_roles r \
     WHERE r.oid = t.relowner AND r.rolname IN ($1, $2)",
    "SELECT t.name || '.tenant may be NULL' FROM tables t JOIN pg_attribute a ON a.attrelid = t.oid \
     WHERE a.attname = 'tenant' AND NOT a.attnotnull",
    // Policies.
    "SELECT t.name || ': ' || count(p.*) || ' policies for ' || $1 || ', where one is right' FROM tables t \
     LEFT JOIN pg_policies p ON p.tablename = t.name AND p.schemaname = 'public' AND p.roles @> ARRAY[$1::name] \
     WHERE t.has_tenant GROUP BY t.name HAVING count(p.*) <> 1",
    "SELECT p.tablename || ': policy ' || p.policyname || ' is for others than the two roles' FROM pg_policies p \
     WHERE p.schemaname = 'public' AND p.roles NOT IN (ARRAY[$1::name], ARRAY[$2::name])",
    "SELECT p.tablename || ': policy ' || p.policyname || ' does not hold for all commands, reading and writing alike' \
     FROM pg_policies p WHERE p.schemaname = 'public' AND (p.cmd <> 'ALL' OR p.qual IS DISTINCT FROM p.with_check)",
    "SELECT p.tablename || ': policy ' || p.policyname || ' does not compare the tenant with the setting' \
     FROM pg_policies p WHERE p.schemaname = 'public' AND p.roles @> ARRAY[$1::name] AND p.qual IS DISTINCT FROM \
     '(tenant = (NULLIF(current_setting(''app.tenant_id''::text, true), ''''::text))::bigint)'",
    // Roles.
    "SELECT r.name || ' does not exist' FROM unnest(ARRAY[$1, $2]) AS r (name) \
     WHERE NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = r.name)",
    "SELECT rolname || ' is a superuser, bypasses row-level security, may log in, or may make roles or databases' \
     FROM pg_roles WHERE rolname IN ($1, $2) \
     AND (rolsuper OR rolbypassrls OR rolcanlogin OR rolcreaterole OR rolcreatedb OR rolreplication)",
    "SELECT r.rolname || ' is a member of ' || g.rolname FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.member \
     JOIN pg_roles g ON g.oid = m.roleid WHERE r.rolname IN ($1, $2)",
    "SELECT r.rolname || ' may make objects in the schema' FROM pg_roles r \
     WHERE r.rolname IN ($1, $2) AND has_schema_privilege(r.oid, 'public', 'CREATE')",
    // Ways around.
    "SELECT c.relname || ': a view that reads as its owner' FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
     WHERE n.nspname = 'public' AND (c.relkind = 'm' OR (c.relkind = 'v' \
     AND NOT coalesce(c.reloptions, '{}') && ARRAY['security_invoker=true', 'security_invoker=on']))",
    // The one there is reads the tenant where the policies read it, has its schema fixed, and is not for everybody.
    "SELECT p.proname || ': a function that runs as its owner' FROM pg_proc p JOIN pg_namespace n \
     ON n.oid = p.pronamespace WHERE n.nspname = 'public' AND p.prosecdef AND NOT (p.proname = 'mail_find' \
     AND pg_get_userbyid(p.proowner) = $2 AND p.proconfig = ARRAY['search_path=public, pg_temp'] AND p.prosrc LIKE \
     '%s.tenant = nullif(current_setting(''app.tenant_id'', true), '''')::bigint%' \
     AND NOT EXISTS (SELECT 1 FROM aclexplode(p.proacl) a WHERE a.grantee = 0))",
];

/// The tables every rule is about.
const TABLES: &str = "WITH tables AS (SELECT c.oid, c.relname AS name, c.relrowsecurity, c.relforcerowsecurity, \
     c.relowner, c.relacl, EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant' \
     AND NOT a.attisdropped) AS has_tenant FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
     WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p')), \
     parameters AS (SELECT $1::text, $2::text) ";

const UNIQUE_KEYS: &str = "SELECT i.relname FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid \
     JOIN tables t ON t.oid = x.indrelid JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = x.indkey[0] \
     WHERE x.indisunique AND t.has_tenant AND a.attname <> 'tenant'";

/// The findings; none is what a database of ours must have. As a superuser, who sees the whole catalogue.
pub async fn lint(client: &Client) -> anyhow::Result<Vec<String>> {
    let mut findings = Vec::new();
    for rule in RULES {
        findings.extend(ask(client, rule).await?);
    }
    for key in ask(client, UNIQUE_KEYS).await? {
        if !UNIQUE_WITHOUT_TENANT.iter().any(|(known, _)| *known == key) {
            findings.push(format!("{key}: a unique key that does not begin with the tenant"));
        }
    }
    Ok(findings)
}

/// The tables that carry a tenant.
pub async fn tenant_tables(client: &Client) -> anyhow::Result<Vec<String>> {
    ask(client, "SELECT t.name FROM tables t WHERE t.has_tenant ORDER BY t.name").await
}

async fn ask(client: &Client, rule: &str) -> anyhow::Result<Vec<String>> {
    let rows = client.query(&format!("{TABLES}{rule}"), &[&ROLE_APP, &ROLE_SYSTEM]).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}
