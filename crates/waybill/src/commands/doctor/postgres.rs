//! The PostgreSQL server and the database in it.

use std::time::Duration;

use waybill_kernel::Error;
use waybill_store::safety::{Login, OpenWrite, PostgresInspection, Replica, Server};
use waybill_store::{PostgresOptions, Rule, StoreRole};

use super::ledger::Broken;
use super::{Check, Scene, ledger, list, work};

/// What the program keeps beside its lanes and readers: one that listens, and two to spare.
const FURTHER_CONNECTIONS: usize = 3;
/// No write of a program that keeps its transactions short is open for so long.
const OPEN_WRITE_MAX: Duration = Duration::from_secs(60);

pub(super) async fn examine(options: &PostgresOptions, role: StoreRole, scene: &Scene) -> Vec<Check> {
    let look = match PostgresInspection::open(options).await {
        Ok(look) => look,
        Err(error) => return vec![Check::of_error("postgresql", &error)],
    };
    let server = match look.server().await {
        Ok(server) => server,
        Err(error) => return vec![Check::of_error("postgresql", &error)],
    };
    let mut checks = vec![reachable(&server), durable(&server), connections(&server, options)];
    checks.push(replicas(look.replicas().await.map_err(|error| error_text(&error)), &server));
    checks.push(open_writes(look.oldest_write().await));
    let schema = look.schema().await;
    let (has_tables, rules) = (schema.as_ref().is_ok_and(Option::is_some), ledger::rules(role, &schema));
    checks.push(work::schema(schema, role, scene.holder.is_some()));
    if !rules.is_empty() {
        let noted = look.text(waybill_access::SERVER_KEY_ID).await;
        checks.push(work::server_key(noted, scene.server_key_id.as_deref()));
    }
    checks.push(login(look.login().await));
    if has_tables {
        checks.push(access(look.access_findings().await));
        if role == StoreRole::Home {
            checks.push(agreement(&look, &rules).await);
        }
        checks.push(work::sweeps(look.sweeps().await, server.now, scene.holder.is_some()));
        checks.push(work::dead_jobs(look.dead_jobs().await));
    }
    checks.push(clock(&server, scene));
    checks
}

fn error_text(error: &Error) -> String {
    error.message().to_owned()
}

fn reachable(server: &Server) -> Check {
    const NAME: &str = "postgresql";
    if server.is_standby {
        let cure = "Name the primary in --store, or several hosts: the one that takes writes is found.";
        Check::failed(NAME, format!("{}, a standby: it takes no writes", server.version), cure)
    } else if server.is_supported {
        Check::ok(NAME, server.version.clone())
    } else {
        Check::failed(NAME, format!("{} is too old", server.version), "Upgrade PostgreSQL to 15 or newer.")
    }
}

fn durable(server: &Server) -> Check {
    const NAME: &str = "durability";
    let cure = "ALTER SYSTEM SET fsync = on; ALTER SYSTEM SET full_page_writes = on; then reload.";
    if !server.fsync || !server.full_page_writes {
        let found = "DANGER: fsync or full_page_writes is off, so a power cut loses or damages what was acknowledged";
        return Check::warning(NAME, found, cure);
    }
    match server.synchronous_commit.as_str() {
        "off" => {
            let found = "DANGER: synchronous_commit is off; the program turns it on for itself, and nobody else does";
            Check::warning(NAME, found, "ALTER SYSTEM SET synchronous_commit = on; then reload.")
        }
        setting => Check::ok(NAME, format!("fsync on, synchronous_commit {setting}")),
    }
}

/// Nodes follow the database's clock, so that a difference harms nothing but the reading of logs.
fn clock(server: &Server, scene: &Scene) -> Check {
    const NAME: &str = "clock";
    const APART_MAX: Duration = Duration::from_secs(5);
    let apart = server.now.since(scene.now).max(scene.now.since(server.now));
    if apart <= APART_MAX {
        return Check::ok(NAME, "the database's and this machine's agree");
    }
    let found = format!("the database's clock and this machine's are {} s apart", apart.as_secs());
    Check::warning(NAME, found, "Set both right (NTP); the program goes by the database's.")
}

fn connections(server: &Server, options: &PostgresOptions) -> Check {
    const NAME: &str = "connections";
    let wanted = options.lanes + options.readers + FURTHER_CONNECTIONS;
    let found = format!("a node takes up to {wanted} of {}", server.connections_max);
    if i64::try_from(wanted).is_ok_and(|wanted| wanted < server.connections_max) {
        return Check::ok(NAME, found);
    }
    Check::warning(NAME, found, "Lower postgres.lanes and postgres.readers, or raise max_connections.")
}

fn replicas(found: Result<Vec<Replica>, String>, server: &Server) -> Check {
    const NAME: &str = "replication";
    let replicas = match found {
        Ok(replicas) => replicas,
        Err(why) => return Check::skipped(NAME, why),
    };
    if replicas.is_empty() {
        let whose = if server.is_standby { "this one is a standby" } else { "no standby follows" };
        return Check::ok(NAME, format!("{whose}; backups are what is left after the loss of its disk"));
    }
    let shown: Vec<_> = replicas
        .iter()
        .map(|replica| {
            let lag =
                replica.lag_bytes.map_or_else(|| "lag unknown".to_owned(), |bytes| format!("{bytes} bytes behind"));
            format!("{} {} {} {lag}", replica.name, replica.state, replica.sync)
        })
        .collect();
    if replicas.iter().all(|replica| replica.state == "streaming") {
        return Check::ok(NAME, list(&shown));
    }
    Check::warning(NAME, list(&shown), "A standby that does not stream falls behind: see its log.")
}

fn open_writes(found: waybill_kernel::Result<Option<OpenWrite>>) -> Check {
    const NAME: &str = "open writes";
    let OpenWrite { pid, database, age } = match found {
        Ok(Some(write)) => write,
        Ok(None) => return Check::ok(NAME, "none in the database"),
        Err(error) => return Check::of_error(NAME, &error),
    };
    let whose = pid.map_or_else(|| "a prepared transaction".to_owned(), |pid| format!("process {pid}"));
    let Some(age) = age else {
        let found = format!("{whose} in database {database} writes; since when only pg_read_all_stats may see");
        return Check::skipped(NAME, found);
    };
    if age <= OPEN_WRITE_MAX {
        return Check::ok(NAME, format!("the oldest has been open for {} s", age.as_secs()));
    }
    let found = format!(
        "{whose} in database {database} has been writing for {} s: no feed gives out what was begun after it",
        age.as_secs()
    );
    let cure = "End it (pg_terminate_backend, ROLLBACK PREPARED); keep transactions short, or give Waybill a database of \
                its own.";
    Check::warning(NAME, found, cure)
}

async fn agreement(look: &PostgresInspection, rules: &[&'static Rule]) -> Check {
    let mut broken = Vec::new();
    for &rule in rules {
        match look.ids(rule.sql, ledger::ASKED_MAX).await {
            Ok(ids) => broken.push(Broken::new(rule, ids)),
            Err(error) => return Check::of_error(ledger::NAME, &error),
        }
    }
    ledger::verdict(rules, &broken)
}

/// An inherited role is told with the statements that take it away; the server refuses to start with one.
fn login(found: waybill_kernel::Result<Login>) -> Check {
    const NAME: &str = "login role";
    let login = match found {
        Ok(login) => login,
        Err(error) => return Check::of_error(NAME, &error),
    };
    let user = &login.user;
    if !login.inherited.is_empty() {
        let found = format!("{user} inherits {}: it sees every tenant's rows", login.inherited.join(" and "));
        return Check::failed(NAME, found, login.cure());
    }
    if login.is_unbound {
        let found = format!("{user} is not bound by row-level security (superuser or BYPASSRLS)");
        let cure = "CREATE ROLE waybill LOGIN CREATEROLE; give it the database (ALTER DATABASE … OWNER TO waybill, REASSIGN \
                    OWNED for tables that are there), and name it in --store.";
        return Check::warning(NAME, found, cure);
    }
    Check::ok(NAME, format!("{user} sees no tenant's rows unless it becomes a role that does"))
}

fn access(found: waybill_kernel::Result<Vec<String>>) -> Check {
    const NAME: &str = "row-level security";
    match found {
        Err(error) => Check::of_error(NAME, &error),
        Ok(findings) if findings.is_empty() => Check::ok(NAME, "roles and policies are as the migrations made them"),
        Ok(findings) => {
            let cure =
                "Tenants may not be held apart. Undo what was changed by hand; the tables' migrations show how it was.";
            Check::failed(NAME, list(&findings), cure)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn a_write_that_stays_open_is_told_with_its_process_its_database_and_its_age() {
        let write = |pid, age_s: Option<u64>| {
            let age = age_s.map(Duration::from_secs);
            open_writes(Ok(Some(OpenWrite { pid, database: "shop".to_owned(), age })))
        };
        let long = write(Some(4711), Some(61));
        assert_eq!(long.verdict, Verdict::Warning);
        for part in ["process 4711", "database shop", "61 s"] {
            assert!(long.found.contains(part), "{}", long.found);
        }
        assert!(write(None, Some(3600)).found.contains("a prepared transaction in database shop"));
        assert_eq!(write(Some(4711), Some(60)).verdict, Verdict::Ok);
        let hidden = write(Some(4711), None);
        assert!(hidden.verdict == Verdict::Skipped && hidden.found.contains("4711"), "{}", hidden.found);
        assert_eq!(open_writes(Ok(None)).verdict, Verdict::Ok);
    }
}
