//! What this worker can do, by the task's type.

use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use tokio_util::sync::CancellationToken;
use waybill_client::Lease;
use waybill_guard::{Guard, SystemResolver};
use waybill_kernel::{Error, Result};

use super::exec::{Exec, OWN};
use super::flags::Run;
use super::held::{Outcome, Refusal};
use super::http_get::HttpGet;

pub const ECHO: &str = "echo";
pub const SLEEP: &str = "sleep_then_return";
pub const HTTP_GET: &str = "http_get";
pub const EXEC: &str = "exec";

const SLEEP_S_MAX: f64 = 86_400.0;

/// How the work ended.
pub enum Work {
    Ended(Outcome),
    /// It was told to end, and what became of it.
    Stopped(String),
}

/// Why there is no result.
#[derive(Debug)]
pub enum Stop {
    Refused(Refusal),
    Told(String),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

pub struct Handlers {
    http_get: HttpGet<SystemResolver>,
    exec: Exec,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sleep {
    seconds: f64,
    #[serde(default)]
    value: Json,
}

impl Handlers {
    pub fn new(flags: &Run) -> Result<Self> {
        let guard = Guard::new(&flags.allow_host, &flags.allow_port, SystemResolver).only(&flags.only_host);
        let http_timeout = Duration::from_secs(flags.http_timeout_seconds);
        let exec_timeout = Duration::from_secs(flags.exec_timeout_seconds);
        Ok(Self {
            http_get: HttpGet::new(guard, http_timeout, flags.http_body_bytes_max),
            exec: Exec::new(&flags.exec, OWN.into(), exec_timeout, flags.exec_output_bytes_max)?,
        })
    }

    /// The types to lease: those asked for, else all. A type without a handler would be leased only to be failed.
    pub fn types(&self, asked: &[String]) -> Result<Vec<String>> {
        let mut known = vec![ECHO, SLEEP, HTTP_GET];
        if !self.exec.is_empty() {
            known.push(EXEC);
        }
        if let Some(unknown) = asked.iter().find(|kind| !known.contains(&kind.as_str())) {
            let hint = if unknown == EXEC { " Name a program with --exec NAME=PATH." } else { "" };
            let known = known.join(", ");
            return Err(Error::invalid(format!("--accept-type {unknown}: this worker can do {known}.{hint}")));
        }
        Ok(if asked.is_empty() { known.into_iter().map(str::to_owned).collect() } else { asked.to_vec() })
    }

    /// Until it is done or is to end.
    ///
    /// # Cancel safety
    /// Dropping it ends the work: connections are closed, and programs are killed with all they have started.
    pub async fn run(&self, lease: &Lease, end: &CancellationToken) -> Work {
        let worked = match lease.kind.as_str() {
            EXEC => self.exec.run(lease, end).await,
            _ => tokio::select! {
                worked = self.work(lease) => worked.map_err(Stop::Refused),
                () = end.cancelled() => Err(Stop::Told("the work was stopped".to_owned())),
            },
        };
        match worked {
            Ok(result) => Work::Ended(Outcome::Done(result)),
            Err(Stop::Refused(refusal)) => Work::Ended(Outcome::Failed(refusal)),
            Err(Stop::Told(how)) => Work::Stopped(how),
        }
    }

    /// What has nothing to clear away.
    async fn work(&self, lease: &Lease) -> std::result::Result<Json, Refusal> {
        match lease.kind.as_str() {
            ECHO => Ok(lease.payload.clone()),
            SLEEP => sleep(lease).await,
            HTTP_GET => self.http_get.run(lease).await,
            other => Err(Refusal::new("unknown_type", format!("This worker has no handler for {other}."))),
        }
    }
}

async fn sleep(lease: &Lease) -> std::result::Result<Json, Refusal> {
    let Sleep { seconds, value } = payload(lease)?;
    if !(0.0..=SLEEP_S_MAX).contains(&seconds) {
        return Err(Refusal::payload(format!("seconds must be between 0 and {SLEEP_S_MAX}.")));
    }
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    Ok(value)
}

pub fn payload<T: DeserializeOwned>(lease: &Lease) -> std::result::Result<T, Refusal> {
    serde_json::from_value(lease.payload.clone())
        .map_err(|error| Refusal::payload(format!("The payload of {} is not understood: {error}.", lease.kind)))
}
