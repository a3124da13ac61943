//! Those who see what an attack does to others: an innocent tenant, keys that are used for the first time, the operator, and the
//! server's memory. They have a thread and a runtime of their own, so that what they measure is the server and not the
//! attackers beside them.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use http::Method;
use serde_json::json;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use waybill_bench::process::memory;

use crate::caller::{Answer, Caller, Target};
use crate::marks::RESIDENT_CEILING_BYTES;
use crate::scale::Scale;
use crate::series::Series;
use crate::stage::Cast;
use crate::wire::{INNOCENT, OPERATOR};

/// Between two calls of the innocent on one of its two connections.
const CALL_PAUSE: Duration = Duration::from_millis(40);
const MEMORY_PAUSE: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Before,
    During,
    After,
}

/// What was seen.
#[derive(Clone, Default)]
pub struct Seen {
    pub before: Series,
    pub during: Series,
    pub after: Series,
    pub new_keys: Series,
    pub revoke: Series,
    pub metrics: Series,
    /// Bytes, at the end of the time before.
    pub resident_before: u64,
    /// The most at any time since.
    pub resident_peak: u64,
    pub resident_now: u64,
}

/// What they agree on.
struct Common {
    phase: Mutex<Phase>,
    seen: Mutex<Seen>,
    pid: u32,
    finished: CancellationToken,
    /// The server is gone, or holds so much that the machine is in danger.
    alarm: CancellationToken,
}

pub struct Witnesses {
    common: Arc<Common>,
    thread: JoinHandle<()>,
}

impl Witnesses {
    pub fn call(target: &Target, cast: &Cast, scale: &Scale, pid: u32) -> Result<Self> {
        let common = Arc::new(Common {
            phase: Mutex::new(Phase::Before),
            seen: Mutex::default(),
            pid,
            finished: CancellationToken::new(),
            alarm: CancellationToken::new(),
        });
        let innocent = Target { from: INNOCENT, key: cast.innocent.key.clone(), ..target.clone() };
        let operator = Target { from: OPERATOR, key: cast.admin.clone(), ..target.clone() };
        let (cast, scale, shared) = (cast.clone(), scale.clone(), Arc::clone(&common));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("witnesses".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::join!(
                    shared.innocent_on_a_kept_connection(innocent.clone()),
                    shared.innocent_on_new_connections(innocent.clone()),
                    shared.first_uses(&innocent, &cast, &scale),
                    shared.operator(&operator, &cast, &scale),
                    shared.watch_memory(),
                );
            });
        })?;
        Ok(Self { common, thread })
    }

    pub fn enter(&self, phase: Phase) {
        *lock(&self.common.phase) = phase;
        if phase == Phase::During {
            // The kernel counts the peak from here on; where it does not, the samples have to do.
            drop(std::fs::write(format!("/proc/{}/clear_refs", self.common.pid), "5"));
            let mut seen = lock(&self.common.seen);
            seen.resident_before = seen.resident_now;
            seen.resident_peak = seen.resident_now;
        }
    }

    pub async fn alarm(&self) {
        self.common.alarm.cancelled().await;
    }

    pub fn resident(&self) -> u64 {
        lock(&self.common.seen).resident_now
    }

    /// Lets calls under way end; what all of them have seen.
    pub fn dismiss(self) -> Result<Seen> {
        self.common.finished.cancel();
        self.thread.join().ok().context("a witness panicked")?;
        Ok(lock(&self.common.seen).clone())
    }
}

impl Common {
    fn phase(&self) -> Phase {
        *lock(&self.phase)
    }

    async fn innocent_on_a_kept_connection(&self, innocent: Target) {
        let mut caller = Caller::new(innocent);
        while !self.finished.is_cancelled() {
            self.innocent_call(caller.call(Method::GET, "/v1/tasks?limit=1", Vec::new())).await;
            sleep(CALL_PAUSE).await;
        }
    }

    /// Creates a task and reads it, each time by a connection that has to be let in first.
    async fn innocent_on_new_connections(&self, innocent: Target) {
        for number in 0_u64.. {
            if self.finished.is_cancelled() {
                return;
            }
            let task = json!({ "type": "echo", "payload": { "n": number }, "idempotency_key": format!("i-{number}") });
            let made =
                self.innocent_call(innocent.call(Method::POST, "/v1/tasks", task.to_string().into_bytes())).await;
            let made = made.and_then(|answer| Some(answer.json().ok()?["task_id"].as_str()?.to_owned()));
            if let Some(id) = made {
                self.innocent_call(innocent.call(Method::GET, &format!("/v1/tasks/{id}"), Vec::new())).await;
            }
            sleep(CALL_PAUSE).await;
        }
    }

    async fn innocent_call(&self, call: impl Future<Output = Result<Answer>>) -> Option<Answer> {
        let phase = self.phase();
        let (took, outcome) = timed(call).await;
        let mut seen = lock(&self.seen);
        let series = match phase {
            Phase::Before => &mut seen.before,
            Phase::During => &mut seen.during,
            Phase::After => &mut seen.after,
        };
        series.record(took, outcome.as_ref().err().cloned());
        outcome.ok()
    }

    async fn first_uses(&self, innocent: &Target, cast: &Cast, scale: &Scale) {
        let pause = scale.hold / u32::try_from(cast.new.len() + 1).unwrap_or(u32::MAX);
        for minted in &cast.new {
            if !self.awaits_attack(pause).await {
                return;
            }
            let target = Target { key: minted.key.clone(), ..innocent.clone() };
            let (took, outcome) = timed(target.call(Method::GET, "/v1/tasks?limit=1", Vec::new())).await;
            lock(&self.seen).new_keys.record(took, outcome.err());
        }
    }

    async fn operator(&self, operator: &Target, cast: &Cast, scale: &Scale) {
        let pause = scale.hold / u32::try_from(cast.spare.len() + 1).unwrap_or(u32::MAX);
        for minted in &cast.spare {
            if !self.awaits_attack(pause).await {
                return;
            }
            let path = format!("/admin/keys/{}/revoke", minted.id);
            let (took, outcome) = timed(operator.call(Method::POST, &path, Vec::new())).await;
            lock(&self.seen).revoke.record(took, outcome.err());
            let (took, outcome) = timed(operator.call(Method::GET, "/metrics", Vec::new())).await;
            lock(&self.seen).metrics.record(took, outcome.err());
        }
    }

    /// Until an attack has been under way for so long; false when there is none any more.
    async fn awaits_attack(&self, pause: Duration) -> bool {
        while self.phase() == Phase::Before && !self.finished.is_cancelled() {
            sleep(MEMORY_PAUSE).await;
        }
        sleep(pause).await;
        self.phase() == Phase::During && !self.finished.is_cancelled()
    }

    async fn watch_memory(&self) {
        while !self.finished.is_cancelled() {
            match memory(self.pid) {
                Ok(memory) => {
                    let during = self.phase() != Phase::Before;
                    let mut seen = lock(&self.seen);
                    seen.resident_now = memory.resident;
                    // The kernel's own peak is of the whole process until the attack begins.
                    let peak = if during { memory.peak.max(memory.resident) } else { memory.resident };
                    seen.resident_peak = seen.resident_peak.max(peak);
                    if memory.resident > RESIDENT_CEILING_BYTES {
                        self.alarm.cancel();
                    }
                }
                Err(_) => self.alarm.cancel(),
            }
            sleep(MEMORY_PAUSE).await;
        }
    }
}

/// How long it took, and the answer where it is a good one.
async fn timed(call: impl Future<Output = Result<Answer>>) -> (Duration, std::result::Result<Answer, String>) {
    let began = Instant::now();
    let outcome = match call.await {
        Ok(answer) if answer.is_success() => Ok(answer),
        Ok(answer) => Err(answer.brief()),
        Err(error) => Err(format!("{error:#}")),
    };
    (began.elapsed(), outcome)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
