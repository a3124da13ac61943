//! Settings that are each right and together wrong.

use waybill_store::Backend;

use super::Check;
use crate::config::Config;

const NAME: &str = "settings";

pub(super) fn examine(config: &Config) -> Vec<Check> {
    let mut checks = Vec::new();
    if config.doors.body_bytes_max < config.tasks.payload_bytes_max {
        let found = format!(
            "doors.body_bytes_max ({}) is less than tasks.payload_bytes_max ({}): no payload of that size arrives",
            config.doors.body_bytes_max, config.tasks.payload_bytes_max
        );
        checks.push(Check::warning(NAME, found, "Raise the one or lower the other."));
    }
    if config.tasks.list_limit > config.tasks.list_limit_max {
        let found = "tasks.list_limit is more than tasks.list_limit_max";
        checks.push(Check::warning(NAME, found, "Lower the default to the largest page or less."));
    }
    if config.insecure_dev && !config.http.ip().is_loopback() {
        let found = format!("insecure_dev lets everybody in, on {}", config.http);
        checks.push(Check::failed(NAME, found, "Take insecure_dev away; the server refuses to start with both."));
    } else if config.insecure_dev {
        let cure = "Take insecure_dev away wherever anybody but you has an account.";
        checks.push(Check::warning(NAME, "insecure_dev: every request of this machine is let in", cure));
    }
    if let Some(address) = config.in_the_open() {
        let found = format!("{address} can be reached over a network, and the server speaks no TLS");
        let cure = "Listen on 127.0.0.1 behind a proxy that ends TLS; doors.trusted_proxy = true says that one stands before it.";
        checks.push(Check::warning(NAME, found, cure));
    }
    if config.shared_token.is_some() {
        let cure = "Make a key for each client (`waybill key create`), then take shared_token away.";
        checks.push(Check::warning(NAME, "shared_token: whoever has it acts as anybody of the default tenant", cure));
    }
    checks.extend(engine(config));
    if checks.is_empty() {
        checks.push(Check::ok(NAME, "none contradicts another"));
    }
    checks
}

fn engine(config: &Config) -> Option<Check> {
    match &config.backend {
        Backend::Sqlite(options) if options.checkpoint_bytes > options.wal_bytes_max => {
            let found =
                "sqlite.checkpoint_bytes is more than sqlite.wal_bytes_max: every copy of the log stops the writer";
            Some(Check::warning(NAME, found, "Make checkpoint_bytes a small part of wal_bytes_max."))
        }
        Backend::Sqlite(options) if options.ballast_bytes == 0 => {
            let found = "sqlite.ballast_bytes is 0: on a full disk nothing can be ended or revoked";
            Some(Check::warning(NAME, found, "Leave it at its 16 MiB."))
        }
        Backend::Postgres(_) if config.data.join("waybill.db").exists() => {
            let found = format!("{} holds a SQLite database that is not used", config.data.display());
            Some(Check::warning(NAME, found, "If its tasks are wanted, start without --store; else move it away."))
        }
        _ => None,
    }
}
