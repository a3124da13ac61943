//! Tenants stay apart in PostgreSQL even when a statement forgets to ask for it.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use waybill_kernel::{Caller, Code, Error, Mode, OperationSpec, Result};
use waybill_store::effects::job;
use waybill_store::{Ctx, Operation, Reply, Tx, Work};
use waybill_testkit::postgres::{Database, Postgres};
use waybill_testkit::race::mesh_keys;
use waybill_testkit::rls::{lint, tenant_tables};
use waybill_testkit::stores::{self, TestStore, leak};

use crate::support::{ok, plain_task, spec, task_status};

/// A tenant's operation that sends whatever it is told to.
#[derive(Deserialize, JsonSchema)]
struct Raw {
    sql: String,
}

impl Operation for Raw {
    const SPEC: OperationSpec = spec("raw");
    /// The first number of the answer, or how many rows were written.
    type Output = i64;

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<i64>> {
        let sql = leak(&self.sql);
        if sql.to_ascii_uppercase().starts_with("SELECT") {
            let rows = tx.query(sql, &[]).await?;
            return Ok(Reply::Done(rows.first().map_or(Ok(0), |row| row.int(0))?));
        }
        Ok(Reply::Done(tx.execute(sql, &[]).await? as i64))
    }
}

/// A tenant's operation that leaves a job behind.
#[derive(Deserialize, JsonSchema)]
struct Enqueue {}

impl Operation for Enqueue {
    const SPEC: OperationSpec = spec("enqueue");
    type Output = job::JobId;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<job::JobId>> {
        job::enqueue(tx, ctx, ctx.caller.tenant, "test", "{}", ctx.now).await.map(Reply::Done)
    }
}

async fn raw(on: &TestStore, caller: &Caller, sql: &str) -> Result<i64> {
    match on.store.run(Raw { sql: sql.to_owned() }, caller.clone()).await? {
        Reply::Done(number) => Ok(number),
        _ => Err(Error::internal("it neither replays nor waits")),
    }
}

#[tokio::test]
async fn every_tenant_table_is_closed_to_other_tenants() {
    let on = stores::open_postgres().await.unwrap();
    let client = on.database().unwrap().connect().await.unwrap();
    assert_eq!(lint(&client).await.unwrap(), Vec::<String>::new());
    let tables = tenant_tables(&client).await.unwrap();
    let expected = "api_keys archived_receipts arrivals chain departures fifo_attempts fifo_duplicates fifo_groups fifo_lines flights \
                    jobs lease_misuses leases mail_agents mail_archive_rows mail_attachments mail_build_slots mail_changes mail_contacts \
                    mail_forgotten_events mail_inbox_events mail_keys mail_messages mail_probes mail_product_projects mail_products mail_projects mail_recipients \
                    mail_reservations mail_search mesh_audit mesh_connections mesh_counters mesh_dedupe mesh_deliveries mesh_epoch_boxes mesh_events \
                    mesh_file_chunks mesh_files mesh_history mesh_invites mesh_keys mesh_members mesh_mentions mesh_messages mesh_queues \
                    mesh_subscriptions mesh_topics meshes messages move_tasks parts queues receipt_archive receipt_parents receipts \
                    relationships required_capabilities results schedule_watch shard_changes stored_bytes task_progress tasks tenants \
                    transfers webhook_deliveries webhooks";
    assert_eq!(tables.join(" "), expected);
}

#[tokio::test]
async fn the_lint_sees_each_way_in_which_a_table_is_left_open() {
    let on = stores::open_postgres().await.unwrap();
    let client = on.database().unwrap().connect().await.unwrap();
    for (mistake, finding) in [
        ("CREATE TABLE bare (tenant BIGINT NOT NULL, id BIGINT)", "bare: row-level security is not both"),
        ("ALTER TABLE tasks NO FORCE ROW LEVEL SECURITY", "tasks: row-level security is not both"),
        ("ALTER TABLE tasks DISABLE ROW LEVEL SECURITY", "tasks: row-level security is not both"),
        ("DROP POLICY tenant_rows ON tasks", "tasks: 0 policies for waybill_app"),
        (
            "CREATE POLICY more ON tasks TO waybill_app USING (true) WITH CHECK (true)",
            "tasks: 2 policies for waybill_app",
        ),
        ("CREATE POLICY open ON tasks USING (true) WITH CHECK (true)", "tasks: policy open is for others"),
        ("ALTER POLICY tenant_rows ON tasks WITH CHECK (true)", "tasks: policy tenant_rows does not hold for all"),
        (
            "ALTER POLICY tenant_rows ON tasks USING (tenant > 0) WITH CHECK (tenant > 0)",
            "tasks: policy tenant_rows does not compare",
        ),
        ("CREATE VIEW everything AS SELECT * FROM tasks", "everything: a view that reads as its owner"),
        ("CREATE MATERIALIZED VIEW kept AS SELECT * FROM tasks", "kept: a view that reads as its owner"),
        (
            "CREATE FUNCTION peek() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS 'SELECT count(*) FROM tasks'",
            "peek: a function that runs as its owner",
        ),
        ("CREATE UNIQUE INDEX by_type ON tasks (type)", "by_type: a unique key that does not begin with the tenant"),
        ("GRANT SELECT ON meta TO waybill_app", "meta: waybill_app may touch"),
        ("GRANT TRUNCATE ON tasks TO waybill_app", "tasks: waybill_app may empty it"),
        ("GRANT SELECT ON tasks TO PUBLIC", "tasks: everybody has a privilege on it"),
        ("ALTER TABLE tasks OWNER TO waybill_app", "tasks: owned by the role"),
        ("GRANT CREATE ON SCHEMA public TO waybill_app", "waybill_app may make objects"),
    ] {
        client.batch_execute(&format!("BEGIN; {mistake}")).await.unwrap();
        let findings = lint(&client).await.unwrap();
        client.batch_execute("ROLLBACK").await.unwrap();
        assert!(findings.iter().any(|found| found.starts_with(finding)), "{mistake}: {findings:?}");
    }
    // Roles belong to the whole cluster: what is done to them must not outlive the transaction.
    for (mistake, finding) in [
        ("ALTER ROLE waybill_app BYPASSRLS", "waybill_app is a superuser, bypasses"),
        ("ALTER ROLE waybill_app LOGIN", "waybill_app is a superuser, bypasses"),
        ("GRANT waybill_system TO waybill_app", "waybill_app is a member of waybill_system"),
    ] {
        client.batch_execute(&format!("BEGIN; {mistake}")).await.unwrap();
        let findings = lint(&client).await.unwrap();
        client.batch_execute("ROLLBACK").await.unwrap();
        assert!(findings.iter().any(|found| found.starts_with(finding)), "{mistake}: {findings:?}");
    }
    assert_eq!(lint(&client).await.unwrap(), Vec::<String>::new());
}

/// Two tenants with something in every tenant table.
async fn two_tenants(on: &TestStore) -> [Caller; 2] {
    let pair = [on.tenant("one").await.unwrap(), on.tenant("two").await.unwrap()];
    for caller in &pair {
        for _ in 0..2 {
            let task_id = plain_task(on, caller).await;
            ok(on, caller, "cancel_task", json!({ "task_id": task_id })).await;
        }
        ok(on, caller, "create_key", json!({ "principal": "agent:a" })).await;
        ok(on, caller, "create_webhook", json!({ "url": "https://hooks.example/" })).await;
        ok(on, caller, "create_mesh", json!({ "slug": "team", "name": "alice", "keys": mesh_keys() })).await;
        on.store.run(Enqueue {}, caller.clone()).await.unwrap();
        // What only sweeps and other callers write.
        let tenant = caller.tenant.0;
        for sql in [
            "INSERT INTO leases (tenant, task_id, epoch, lease_id, worker, created_at) VALUES (T, '\\x00', 1, '\\x00', 'w', 0)",
            "INSERT INTO task_progress (tenant, task_id, progress, updated_at) VALUES (T, '\\x00', '1', 0)",
            "INSERT INTO relationships (tenant, principal, first_seen_at, last_seen_at, sessions_count) VALUES (T, 'a', 0, 0, 0)",
            "INSERT INTO schedule_watch (tenant, schedule_id, owner, receipt_id, enabled) VALUES (T, 's', 'a', '\\x00', 1)",
            "INSERT INTO chain (tenant, position, receipt_id, receipt_type, parents, created_at, content, parties, link) \
             VALUES (T, 1, '\\x00', 't', '', 0, '', '', '')",
            "INSERT INTO archived_receipts (tenant, xact, seq, receipt_id, receipt_type, sender, addressee, parents, body, \
             instance, created_at, archived_at) VALUES (T, 1, 1, '\\x00', 't', 'a', 'a', '', '{}', 'i', 0, 0)",
            "INSERT INTO receipt_archive (tenant, receipt_id, xact, seq) VALUES (T, '\\x00', 1, 1)",
            "INSERT INTO queues (tenant, name, generation, incarnation, attributes, tags, created_at, modified_at) \
             VALUES (T, 'q', 1, 1, '{}', '{}', 0, 0)",
            "INSERT INTO shard_changes (tenant, queue, shard, generation, version) VALUES (T, 'q', 's', 1, 1)",
            "INSERT INTO transfers (tenant, mid, part, move, target, next_at) \
             VALUES (T, nextval('message_numbers'), 1, '\\x00', 'q', 0)",
            "INSERT INTO arrivals (tenant, move, arrived_at) VALUES (T, '\\x00', 0)",
            "INSERT INTO required_capabilities (tenant, name) VALUES (T, 'c')",
            "INSERT INTO parts (tenant, queue, generation, partition) VALUES (T, 'q', 1, 0)",
            "INSERT INTO messages (tenant, mid, id, body, md5, sent_at, sender) \
             VALUES (T, nextval('message_numbers'), '\\x00', 'b', '\\x00', 0, 'a')",
            "INSERT INTO flights (tenant, mid, part, visible_at, receives) VALUES (T, nextval('message_numbers'), 1, 0, 1)",
            "INSERT INTO departures (tenant, mid) VALUES (T, nextval('message_numbers'))",
            "INSERT INTO move_tasks (tenant, task, source, status, active, moved, to_move, started_at, paced_to) \
             VALUES (T, '\\x00', 'q', 'RUNNING', 1, 0, 0, 0, 0)",
            "INSERT INTO fifo_groups (tenant, part, grp, ready_at) VALUES (T, 1, 'g', 0)",
            "INSERT INTO fifo_lines (tenant, part, grp, mid) VALUES (T, 1, 'g', 1)",
            "INSERT INTO fifo_duplicates (tenant, part, scope, dedup, id, mid, until) VALUES (T, 1, '', 'd', '\\x00', 1, 0)",
            "INSERT INTO fifo_attempts (tenant, part, attempt, token, visible_at, mids, until) \
             VALUES (T, 1, 'a', '\\x00', 0, '[]', 0)",
            "INSERT INTO webhook_deliveries (tenant, webhook_id, delivery_id, receipt_id, receipt_type, state, attempts, created_at, \
             keep_until) VALUES (T, '\\x00', '\\x00', '\\x00', 't', 'pending', 0, 0, 0)",
            "INSERT INTO lease_misuses (tenant, task_id, worker, uses) VALUES (T, '\\x00', 'w', 1)",
            "INSERT INTO mail_probes (tenant, probed_at) VALUES (T, 0)",
            "INSERT INTO mail_projects (tenant, slug, human_key, digest, created_at) VALUES (T, 'p', '/p', '\\x00', 0)",
            "INSERT INTO mail_agents (tenant, project, name, name_key, program, model, task, policy, attachments_policy, principal, \
             token, created_at, active_at) VALUES (T, 1, 'A', 'a', 'p', 'm', '', 'auto', 'auto', 'agent:a', '\\x00', 0, 0)",
            "INSERT INTO mail_messages (tenant, project, sender, sender_name, subject, body, importance, ack_required, names, \
             created_at) VALUES (T, 1, 1, 'A', 's', 'b', 'normal', 0, '{}', 0)",
            "INSERT INTO mail_recipients (tenant, message, agent, kind, sender, urgent, ack_required, intro, created_at) \
             VALUES (T, 1, 1, 'to', 1, 0, 0, 0, 0)",
            "INSERT INTO mail_attachments (tenant, message, position, name, media_type, sha256, content) \
             VALUES (T, 1, 0, 'f', 'a/b', '\\x00', '\\x00')",
            "INSERT INTO mail_contacts (tenant, from_agent, to_agent, status, reason, created_at, updated_at) \
             VALUES (T, 1, 2, 'pending', '', 0, 0)",
            "INSERT INTO mail_inbox_events (tenant, agent, message, at) VALUES (T, 1, 1, 0)",
            "INSERT INTO mail_forgotten_events (tenant, agent, xact, seq) VALUES (T, 1, 0, 0)",
            "INSERT INTO mail_keys (tenant, project, agent, tool, key, fingerprint, answer, created_at) \
             VALUES (T, 1, 1, 't', 'k', '\\x00', '', 0)",
            "INSERT INTO mail_archive_rows (tenant, project, kind, ref, at, state, next_at) \
             VALUES (T, 1, 'agent', 1, 0, 'waiting', 0)",
            "INSERT INTO mail_changes (tenant, project, agent, changes, changed_at) VALUES (T, 1, 1, 1, 0)",
            "INSERT INTO mail_reservations (tenant, project, agent, path, head, exclusive, reason, created_at, expires_at) \
             VALUES (T, 1, 1, 'a', 'a', 1, '', 0, 0)",
            "INSERT INTO mail_build_slots (tenant, project, slot, agent, exclusive, acquired_at, expires_at) \
             VALUES (T, 1, 's', 1, 1, 0, 0)",
            "INSERT INTO mail_products (tenant, key, name, created_at) VALUES (T, 'k', 'n', 0)",
            "INSERT INTO mail_product_projects (tenant, product, project, linked_at) VALUES (T, 1, 1, 0)",
            "INSERT INTO mail_search (tenant, message, created_at, words) \
             VALUES (T, nextval('message_numbers'), 0, '''w'':1'::tsvector)",
            "INSERT INTO mesh_invites (tenant, mesh_id, invite_id, issuer, issuer_key, uses, used, expires_at, created_at) \
             VALUES (T, '\\x00', '\\x00', '\\x00', '\\x00', 1, 0, 0, 0)",
            "INSERT INTO mesh_connections (tenant, mesh_id, member_id, connection_id, connected_at, lease_until) \
             VALUES (T, '\\x00', '\\x00', '\\x00', 0, 0)",
            "INSERT INTO mesh_topics (tenant, mesh_id, topic, created_by, created_at, epoch, blocked) \
             VALUES (T, '\\x00', 't', '\\x00', 0, 0, 0)",
            "INSERT INTO mesh_subscriptions (tenant, mesh_id, topic, member_id, since_seq, created_at) \
             VALUES (T, '\\x00', 't', '\\x00', 0, 0)",
            "INSERT INTO mesh_epoch_boxes (tenant, mesh_id, topic, epoch, member_id, minter_key, epoch_box) \
             VALUES (T, '\\x00', 't', 1, '\\x00', '\\x00', '{}')",
            "INSERT INTO mesh_dedupe (tenant, mesh_id, client_message_id, message_id, history_id, sender, fingerprint, \
             destination_kind, destination_ref, first_seen_at, history_available) \
             VALUES (T, '\\x00', 'c', '\\x00', '\\x00', '\\x00', '\\x00', 'dm', 'x', 0, 1)",
            "INSERT INTO mesh_messages (tenant, mesh_id, message_id, client_message_id, seq, sender, sender_key, envelope, \
             mentions, created_at) VALUES (T, '\\x00', '\\x00', 'c', 1, '\\x00', '\\x00', '{}', 0, 0)",
            "INSERT INTO mesh_history (tenant, mesh_id, seq, history_id, message_id, sender, at) \
             VALUES (T, '\\x00', 1, '\\x00', '\\x00', '\\x00', 0)",
            "INSERT INTO mesh_deliveries (tenant, mesh_id, member_id, seq, message_id, created_at) \
             VALUES (T, '\\x00', '\\x00', 1, '\\x00', 0)",
            "INSERT INTO mesh_mentions (tenant, mesh_id, message_id, member_id) VALUES (T, '\\x00', '\\x00', '\\x00')",
            "INSERT INTO mesh_files (tenant, mesh_id, file_id, owner, meta, size_bytes, received_bytes, chunks, state, \
             persistent, created_at) VALUES (T, '\\x00', '\\x00', '\\x00', '', 1, 0, 0, 'arriving', 0, 0)",
            "INSERT INTO mesh_queues (tenant, mesh_id, queue, allowed_by, allowed_at) VALUES (T, '\\x00', 'q', '\\x00', 0)",
            "INSERT INTO mesh_file_chunks (tenant, mesh_id, file_id, position, bytes) \
             VALUES (T, '\\x00', '\\x00', 0, '\\x00')",
        ] {
            on.write(&sql.replace("(T,", &format!("({tenant},"))).await.unwrap();
        }
    }
    pair
}

#[tokio::test]
async fn without_row_filters_a_tenant_still_reads_nothing_foreign() {
    let on = stores::open_postgres().await.unwrap();
    let client = on.database().unwrap().connect().await.unwrap();
    for caller in two_tenants(&on).await {
        for table in tenant_tables(&client).await.unwrap() {
            let own = format!("SELECT count(*) FROM {table} WHERE tenant = {}", caller.tenant.0);
            let own: i64 = client.query_one(&own, &[]).await.unwrap().get(0);
            let seen =
                raw(&on, &caller, &format!("SELECT count(*) FROM {table} WHERE tenant = $1 OR TRUE")).await.unwrap();
            assert!(own > 0, "{table} has nothing to hide");
            assert_eq!(seen, own, "{table}");
            let foreign = format!("SELECT count(*) FROM {table} WHERE tenant <> $1 OR tenant = $1 AND FALSE");
            assert_eq!(raw(&on, &caller, &foreign).await.unwrap(), 0, "{table}");
        }
    }
}

#[tokio::test]
async fn without_row_filters_a_tenant_changes_nothing_foreign() {
    let on = stores::open_postgres().await.unwrap();
    let [one, two] = two_tenants(&on).await;
    let theirs = plain_task(&on, &two).await;
    let touched = raw(&on, &one, "UPDATE tasks SET priority = 99 WHERE tenant = $1 OR TRUE").await.unwrap();
    assert_eq!(touched, 2, "its own two and no others");
    assert_eq!(on.count("SELECT count(*) FROM tasks WHERE priority = 99").await.unwrap(), 2);
    assert_eq!(raw(&on, &one, "DELETE FROM receipts WHERE tenant = $1 OR TRUE").await.unwrap(), 6);
    let left = format!("SELECT count(*) FROM receipts WHERE tenant = {}", two.tenant.0);
    assert_eq!(on.count(&left).await.unwrap(), 7);
    assert_eq!(task_status(&on, &two, &theirs).await, "queued");
}

#[tokio::test]
async fn a_row_cannot_be_given_to_another_tenant() {
    let on = stores::open_postgres().await.unwrap();
    let [one, two] = two_tenants(&on).await;
    assert_eq!(two.tenant.0, one.tenant.0 + 1);
    // As the program's own connection would say it, past the check of its statements.
    let client = on.database().unwrap().connect().await.unwrap();
    for sql in [
        "UPDATE results SET tenant = T + 1",
        "INSERT INTO results (tenant, task_id, outcome, completed_at) VALUES (T + 1, '\\x00', 'canceled', 0)",
        "INSERT INTO tenants (tenant, tenant_id, name, tier, created_at) VALUES (T + 100, '\\x00', 'n', 'free', 0)",
    ] {
        let tenant = one.tenant.0.to_string();
        let begin = format!("BEGIN; SET LOCAL ROLE waybill_app; SET LOCAL app.tenant_id = '{tenant}'");
        client.batch_execute(&begin).await.unwrap();
        let error = client.batch_execute(&sql.replace("T +", &format!("{tenant} +"))).await.unwrap_err();
        client.batch_execute("ROLLBACK").await.unwrap();
        let why = error.as_db_error().unwrap().message();
        assert!(why.contains("row-level security"), "{sql}: {why}");
    }
    for caller in [&one, &two] {
        let own = raw(&on, caller, "SELECT count(*) FROM results WHERE tenant = $1").await.unwrap();
        assert_eq!(own, 2);
    }
}

async fn a_statement_that_does_not_name_its_tenant_is_refused(on: TestStore) {
    let alice = on.agent("alice").unwrap();
    plain_task(&on, &alice).await;
    for sql in [
        "SELECT count(*) FROM tasks",
        "DELETE FROM tasks",
        "UPDATE tasks SET priority = 1",
        "select count(*) from tasks",
        "SELECT count(*) FROM tasks t JOIN receipts r ON r.task_id = t.task_id WHERE t.tenant = $1",
    ] {
        let error = raw(&on, &alice, sql).await.unwrap_err();
        assert_eq!(error.code(), Code::Internal);
        assert!(error.cause().unwrap().contains("does not bind the tenant"), "{sql}: {error:?}");
    }
    assert_eq!(raw(&on, &alice, "SELECT count(*) FROM tasks WHERE tenant = $1").await.unwrap(), 1);
}

waybill_testkit::both! { a_statement_that_does_not_name_its_tenant_is_refused }

/// What a pooled connection carries between transactions: it ends its own and looks.
struct Look;

impl Work for Look {
    /// Tenant, user, backend.
    type Output = (Option<String>, String, i64);

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Self::Output> {
        const SELECT: &str =
            "SELECT nullif(current_setting('app.tenant_id', true), ''), current_user::text, pg_backend_pid()";
        let inside = tx.query_opt(SELECT, &[]).await?.ok_or_else(|| Error::internal("no row"))?;
        assert_eq!((inside.text_opt(0)?, inside.text(1)?), (None, "waybill_system"));
        tx.execute("COMMIT", &[]).await?;
        let row = tx.query_opt(SELECT, &[]).await?.ok_or_else(|| Error::internal("no row"))?;
        Ok((row.text_opt(0)?.map(str::to_owned), row.text(1)?.to_owned(), row.int(2)?))
    }
}

/// A user of its own that owns its database, as a deployment has it. Roles belong to the cluster, so it has its own name.
async fn login_of(database: &Database) -> String {
    let (login, name) = (format!("login_{}", database.name), &database.name);
    let sql = format!(
        "DROP ROLE IF EXISTS {login}; CREATE ROLE {login} LOGIN CREATEROLE; ALTER DATABASE {name} OWNER TO {login}"
    );
    database.connect().await.unwrap().batch_execute(&sql).await.unwrap();
    login
}

async fn plain_client(database: &Database, login: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&database.url_as(login), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// How many rows of tenants a statement sees that is sent without becoming any role.
async fn seen_plainly(client: &tokio_postgres::Client, tables: &[String]) -> i64 {
    let mut seen = 0;
    for table in tables {
        seen += client.query_one(&format!("SELECT count(*) FROM {table}"), &[]).await.unwrap().get::<_, i64>(0);
    }
    seen
}

#[tokio::test]
async fn the_login_sees_no_tenants_rows_unless_it_becomes_a_role_that_does() {
    let database = Postgres::shared().await.unwrap().database().await.unwrap();
    let (login, superuser) = (login_of(&database).await, database.connect().await.unwrap());
    let url = database.url_as(&login);
    let on = stores::open_postgres_in(database, |options| options.url.clone_from(&url)).await.unwrap();
    two_tenants(&on).await;
    let tables = tenant_tables(&superuser).await.unwrap();
    assert_eq!(lint(&superuser).await.unwrap(), Vec::<String>::new());
    let client = plain_client(on.database().unwrap(), &login).await;
    assert_eq!(seen_plainly(&client, &tables).await, 0);

    // As it was made before, and as anybody may make it again: the next start takes it back.
    superuser.batch_execute(&format!("GRANT waybill_app, waybill_system TO {login}")).await.unwrap();
    assert!(seen_plainly(&client, &tables).await > 0, "what is to be prevented");
    let another = on.second_node(|options| options.url.clone_from(&url)).await.unwrap();
    assert_eq!(seen_plainly(&client, &tables).await, 0);
    another.close();

    // Who may not take it back is told what to run, and that is enough.
    let harm = format!("ALTER ROLE {login} NOCREATEROLE; GRANT waybill_system TO {login}");
    superuser.batch_execute(&harm).await.unwrap();
    let refused = on.second_node(|options| options.url.clone_from(&url)).await.err().unwrap().to_string();
    assert!(refused.contains(&format!("{login} inherits waybill_system")), "{refused}");
    let cure = refused.split_once("Let an administrator run: ").unwrap().1.split(" [").next().unwrap();
    run_as_told(&superuser, cure).await;
    assert_eq!(seen_plainly(&client, &tables).await, 0);
    on.second_node(|options| options.url.clone_from(&url)).await.unwrap().close();
}

/// Other tests grant the same roles of the same cluster at the same moment, which PostgreSQL refuses to one of the two.
async fn run_as_told(superuser: &Client, statements: &str) {
    for _ in 0..50 {
        match superuser.batch_execute(statements).await {
            Ok(()) => return,
            // "Tuple concurrently updated", or a row that the other one has just added.
            Err(error)
                if [&SqlState::INTERNAL_ERROR, &SqlState::UNIQUE_VIOLATION].map(Some).contains(&error.code()) => {}
            Err(error) => panic!("{statements}: {error:?}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("never alone with {statements}");
}

/// A user that an administrator has given nothing is told everything it lacks, and that is enough.
#[tokio::test]
async fn a_login_that_may_make_no_roles_is_told_what_an_administrator_has_to_run() {
    let database = Postgres::shared().await.unwrap().database().await.unwrap();
    let (login, superuser) = (login_of(&database).await, database.connect().await.unwrap());
    superuser.batch_execute(&format!("ALTER ROLE {login} NOCREATEROLE")).await.unwrap();
    // The roles belong to the cluster, and other tests have made them.
    stores::open_postgres().await.unwrap();
    let url = database.url_as(&login);
    let time = waybill_kernel::clock::manual::ManualSource::at(1);
    let open = || stores::open(waybill_store::Backend::Postgres(stores::postgres_options(&url)), &time);
    let refused = open().await.err().unwrap();
    assert_eq!(refused.code(), Code::DatabaseUnusable);
    let told = refused.message();
    assert!(told.contains("may not become waybill_app and waybill_system"), "{told}");
    run_as_told(&superuser, told.split_once("Let an administrator run: ").unwrap().1).await;
    open().await.unwrap().close();
}

#[tokio::test]
async fn a_pooled_connection_carries_no_tenant_and_no_role() {
    // Word to other nodes would take the connection for itself, and the next call would make a second one.
    let never = std::time::Duration::from_secs(3600);
    let on = stores::open_postgres_with(|options| (options.lanes, options.notify_interval) = (1, never));
    let on = on.await.unwrap();
    let alice = on.agent("alice").unwrap();
    let sql = "SELECT pg_backend_pid() FROM tasks WHERE tenant = $1 AND current_user = 'waybill_app'";
    plain_task(&on, &alice).await;
    let backend = raw(&on, &alice, sql).await.unwrap();
    assert_eq!(on.store.system().run(Look).await.unwrap(), (None, "postgres".to_owned(), backend));
    // After a transaction that failed as well.
    raw(&on, &alice, "SELECT 1 / 0 FROM tasks WHERE tenant = $1").await.unwrap_err();
    assert_eq!(on.store.system().run(Look).await.unwrap(), (None, "postgres".to_owned(), backend));
}
