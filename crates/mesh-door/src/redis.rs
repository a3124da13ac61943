//! The limiter of several servers: what one of them counts, all have counted.
//!
//! Redis runs a script as one step, with nobody else between its commands. Two keys take part for each attempt, both with the mesh
//! in braces, which a cluster of Redis takes for the part that decides where a key lives:
//! - `rl:{mesh}:<bucket>`, how many were counted in the window; gone one window after the last of them;
//! - `rli:{mesh}:<client_id>:<bucket>`, that this id was; gone after two windows.
//!
//! The id of a mesh is its own among those of all tenants. Where Redis does not answer, this process counts alone: each server
//! then lets a whole budget through, which is more than it should be and better than nothing. It is counted and shown.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, RedisResult, Script};
use tokio::time::Instant;
use waybill_kernel::{Code, Error, Result};
use waybill_mesh::limiter::{Attempt, InProcess, Limiter, Verdict};

use crate::Settings;
use crate::metrics;

/// Answers 0 for counted, 1 for counted before, 2 for denied.
const CONSUME: &str = "\
    if redis.call('EXISTS', KEYS[2]) == 1 then return 1 end
    if tonumber(redis.call('GET', KEYS[1]) or '0') >= tonumber(ARGV[1]) then return 2 end
    redis.call('INCR', KEYS[1])
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    redis.call('SET', KEYS[2], '1', 'PX', ARGV[2] * 2)
    return 0";

pub(crate) fn client(address: &str) -> RedisResult<Client> {
    Client::open(address)
}

pub struct Shared {
    manager: ConnectionManager,
    script: Script,
    patience: Duration,
    pause: Duration,
    /// Until then Redis is left alone, but for the one who looks whether it is back.
    away_until: Mutex<Option<Instant>>,
    condition: Condition,
    alone: InProcess,
}

/// Whether the servers count together. Cheap to clone.
#[derive(Clone, Default)]
pub struct Condition(Option<Arc<AtomicBool>>);

impl Condition {
    /// As the server's health shows it.
    pub fn as_str(&self) -> &'static str {
        match &self.0 {
            None => "in_process",
            Some(up) if up.load(Ordering::Relaxed) => "redis",
            Some(_) => "in_process: redis does not answer",
        }
    }
}

impl Shared {
    /// Does not connect yet: a server starts without Redis, too.
    ///
    /// # Errors
    /// `config_invalid` for an address that is none.
    pub fn new(address: &str, settings: &Settings) -> Result<Self> {
        let refused = |error| {
            let error = Error::new(Code::ConfigInvalid, "mesh.redis is no address of Redis.").because(error);
            error.with_cure("Set it to an address like redis://host:6379/0.")
        };
        let patience = Duration::from_millis(settings.redis_ms);
        let config = ConnectionManagerConfig::new()
            .set_number_of_retries(0)
            .set_connection_timeout(Some(patience))
            .set_response_timeout(Some(patience));
        let client = client(address).map_err(refused)?;
        let manager = ConnectionManager::new_lazy_with_config(client, config).map_err(refused)?;
        Ok(Self {
            manager,
            script: Script::new(CONSUME),
            patience,
            pause: Duration::from_millis(settings.redis_pause_ms),
            away_until: Mutex::new(None),
            condition: Condition(Some(Arc::new(AtomicBool::new(true)))),
            alone: InProcess::default(),
        })
    }

    pub fn condition(&self) -> Condition {
        self.condition.clone()
    }

    /// One at a time looks whether a Redis that was away is back; all others count alone meanwhile.
    fn may_ask(&self) -> bool {
        let mut away_until = self.away_until.lock().unwrap_or_else(PoisonError::into_inner);
        match *away_until {
            Some(until) if Instant::now() < until => false,
            Some(_) => {
                *away_until = Some(Instant::now() + self.pause);
                true
            }
            None => true,
        }
    }

    async fn ask(&self, attempt: &Attempt<'_>) -> RedisResult<i64> {
        let (mesh, bucket) = (attempt.mesh, attempt.bucket());
        let window_ms = i64::try_from(attempt.window.as_millis()).unwrap_or(i64::MAX / 2).max(1);
        let mut manager = self.manager.clone();
        let mut call = self.script.key(format!("rl:{{{mesh}}}:{bucket}"));
        call.key(format!("rli:{{{mesh}}}:{}:{bucket}", attempt.client_message_id));
        call.arg(attempt.budget).arg(window_ms);
        call.invoke_async(&mut manager).await
    }

    fn answered(&self) {
        *self.away_until.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if !self.is_up().swap(true, Ordering::Relaxed) {
            tracing::info!("redis answers again; messages of meshes are counted together");
        }
    }

    fn failed(&self, why: &dyn std::fmt::Display) {
        *self.away_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + self.pause);
        if self.is_up().swap(false, Ordering::Relaxed) {
            tracing::warn!(%why, "redis does not answer; this server counts the messages of meshes alone");
        }
    }

    fn is_up(&self) -> &AtomicBool {
        static NEVER: AtomicBool = AtomicBool::new(false);
        self.condition.0.as_deref().unwrap_or(&NEVER)
    }

    async fn decide(&self, attempt: Attempt<'_>) -> Result<Verdict> {
        if self.may_ask() {
            match tokio::time::timeout(self.patience, self.ask(&attempt)).await {
                Ok(Ok(answer)) => {
                    self.answered();
                    return Ok(match answer {
                        0 => Verdict::Counted,
                        1 => Verdict::CountedBefore,
                        _ => Verdict::Denied { retry_after: attempt.retry_after() },
                    });
                }
                Ok(Err(error)) => self.failed(&error),
                Err(_) => self.failed(&"it took too long"),
            }
        }
        metrics::counted_alone();
        self.alone.decide(&attempt)
    }
}

impl Limiter for Shared {
    fn consume<'a>(&'a self, attempt: Attempt<'a>) -> BoxFuture<'a, Result<Verdict>> {
        Box::pin(self.decide(attempt))
    }
}
