//! Keeps us away from a primary that was replaced.
//!
//! PostgreSQL begins a new timeline of its log with every promotion. A server that takes writes on a lower timeline
//! than we have seen is an old primary that somebody brought back: it would take our writes too, and nobody would find
//! them again.
//!
//! A process knows what it has seen itself, and asks every address of `--store` when it starts. It cannot know of a
//! new primary that it cannot reach: taking the old one down for good remains the fail-over manager's task.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use deadpool_postgres::{Hook, HookError, Metrics};
use tokio_postgres::config::{Host, LoadBalanceHosts};
use tokio_postgres::{Client, Config, NoTls};
use waybill_kernel::{Code, Error};

/// With several addresses they are tried in random order, so that a fenced one does not hide the others for ever.
const CONNECT_ATTEMPTS_MAX: u32 = 20;

#[derive(Default)]
pub(super) struct Fence {
    /// The highest timeline seen; 0 before the first.
    timeline: AtomicU32,
    /// When it was last raised: whatever was connected before may lead to the server that was replaced.
    raised: Mutex<Option<Instant>>,
}

impl Fence {
    /// False for a primary that was replaced.
    fn admits(&self, timeline: u32) -> bool {
        let before = self.timeline.fetch_max(timeline, Ordering::SeqCst);
        if before != 0 && timeline > before {
            *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            tracing::warn!(before, timeline, "another server has become the primary");
        }
        timeline == 0 || timeline >= before
    }

    pub(super) async fn check(&self, client: &Client) -> std::result::Result<(), String> {
        let timeline = timeline_of(client).await;
        if self.admits(timeline) {
            return Ok(());
        }
        let seen = self.timeline.load(Ordering::SeqCst);
        tracing::error!(
            timeline,
            seen,
            "refused a PostgreSQL server that takes writes although it was replaced; stop it, or make it a standby"
        );
        Err(format!("the server is on timeline {timeline}, and timeline {seen} has been seen"))
    }

    /// For connections that are made.
    pub(super) fn on_create(self: &Arc<Self>) -> Hook {
        let fence = Arc::clone(self);
        Hook::async_fn(move |client, _| {
            let fence = Arc::clone(&fence);
            Box::pin(async move { fence.check(client).await.map_err(HookError::message) })
        })
    }

    /// For connections that are used again.
    pub(super) fn on_recycle(self: &Arc<Self>) -> Hook {
        let fence = Arc::clone(self);
        Hook::sync_fn(move |_, metrics: &Metrics| {
            let raised = *fence.raised.lock().unwrap_or_else(PoisonError::into_inner);
            if raised.is_some_and(|raised| metrics.created < raised) {
                return Err(HookError::message("made before another server became the primary"));
            }
            Ok(())
        })
    }

    /// Learns from every address which of them is the primary.
    pub(super) async fn look_around(&self, config: &Config) {
        for alone in one_by_one(config) {
            if let Ok((client, connection)) = alone.connect(NoTls).await {
                let connection = tokio::spawn(connection);
                self.admits(timeline_of(&client).await);
                drop(client);
                let _ = connection.await;
            }
        }
    }

    /// A connection outside the pool, to no server that was replaced.
    pub(super) async fn connect(
        &self,
        config: &Config,
    ) -> std::result::Result<(Client, tokio::task::JoinHandle<()>), Refused> {
        let mut refusal = String::new();
        for _ in 0..CONNECT_ATTEMPTS_MAX {
            let (client, connection) = config.connect(NoTls).await.map_err(Refused::ByDriver)?;
            let connection = tokio::spawn(async move { drop(connection.await) });
            match self.check(&client).await {
                Ok(()) => return Ok((client, connection)),
                Err(why) => refusal = why,
            }
        }
        Err(Refused::ByFence(refusal))
    }
}

pub(super) enum Refused {
    ByDriver(tokio_postgres::Error),
    ByFence(String),
}

impl From<tokio_postgres::Error> for Refused {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::ByDriver(error)
    }
}

impl Refused {
    pub(super) fn into_error(self, unreachable: impl Fn(&tokio_postgres::Error) -> Error) -> Error {
        match self {
            Refused::ByDriver(error) => unreachable(&error),
            Refused::ByFence(why) => Error::new(Code::StoreUnavailable, format!("PostgreSQL is fenced off: {why}.")),
        }
    }
}

/// 0 where the server does not tell, as some managed ones do not: then nothing is fenced.
async fn timeline_of(client: &Client) -> u32 {
    let sql = "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)";
    let told = client.query_one(sql, &[]).await.ok().and_then(|row| row.try_get::<_, String>(0).ok());
    told.and_then(|text| u32::from_str_radix(&text, 16).ok()).unwrap_or(0)
}

/// As many configurations as there are addresses, when there are several.
fn one_by_one(config: &Config) -> Vec<Config> {
    let hosts = config.get_hosts();
    if hosts.len() < 2 {
        return Vec::new();
    }
    let ports = config.get_ports();
    let alone = |(index, host): (usize, &Host)| {
        let mut alone = Config::new();
        match host {
            Host::Tcp(name) => alone.host(name),
            Host::Unix(path) => alone.host_path(path),
        };
        alone.port(ports.get(index).or_else(|| ports.first()).copied().unwrap_or(5432));
        alone.target_session_attrs(config.get_target_session_attrs()).ssl_mode(config.get_ssl_mode());
        if let Some(user) = config.get_user() {
            alone.user(user);
        }
        if let Some(password) = config.get_password() {
            alone.password(password);
        }
        if let Some(name) = config.get_dbname() {
            alone.dbname(name);
        }
        if let Some(longest) = config.get_connect_timeout() {
            alone.connect_timeout(*longest);
        }
        alone
    };
    hosts.iter().enumerate().map(alone).collect()
}

/// Several addresses are tried in random order.
pub(super) fn spread(config: &mut Config) {
    if config.get_hosts().len() > 1 {
        config.load_balance_hosts(LoadBalanceHosts::Random);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_timeline_is_refused_and_an_untold_one_never_raises() {
        let fence = Fence::default();
        assert!(fence.admits(0) && fence.admits(3) && fence.admits(0) && fence.admits(3));
        assert!(fence.raised.lock().unwrap().is_none(), "the first one seen replaces nobody");
        assert!(!fence.admits(2));
        assert!(fence.admits(4));
        assert!(fence.raised.lock().unwrap().is_some());
        assert!(!fence.admits(3));
    }

    #[test]
    fn each_address_is_asked_alone_with_everything_else_the_same() {
        let config: Config = "postgres://u:p@a:1,b:2/d?target_session_attrs=read-write".parse().unwrap();
        let alone = one_by_one(&config);
        let ports: Vec<&[u16]> = alone.iter().map(Config::get_ports).collect();
        assert_eq!(ports, [&[1][..], &[2]]);
        assert!(alone.iter().all(|config| config.get_user() == Some("u") && config.get_dbname() == Some("d")));
        assert!(one_by_one(&"postgres://u@a/d".parse().unwrap()).is_empty());
    }
}
