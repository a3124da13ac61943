//! Hooks: programs that the user puts into the daemon's folder, run when something happens.
//!
//! # Contract
//! A hook runs only with an entry in hooks.toml, never in CI, at most [`RUNNING_MAX`] at once, and is ended with everything it has
//! started when its time is up. A message is in the inbox before its hooks run; a hook that fails, hangs or floods changes nothing
//! about that. Every run is one line in the log and, unless its entry says otherwise, one in hooks-audit.jsonl.
//!
//! # What may fail
//! Runs that wait beyond [`WAITING_MAX`] are dropped and counted: whoever needs every message reads the inbox.

mod audit;
pub mod capability;
mod fence;
mod occasion;
mod run;
pub mod settings;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use futures_util::future::BoxFuture;
use serde_json::{Value as Json, json};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use waybill_kernel::{Clock, Code, Entropy, Error, Result};

use self::audit::Audit;
use self::capability::Capabilities;
use self::fence::Fences;
use self::occasion::{Message, Occasion};
use self::run::{Outcome, Ran, Run};
use self::settings::{Hook, HookSettings, ON_TOPIC, PRE_SEND};
use crate::config;
use crate::events::{Event, EventKind, Events, Listener};
use crate::folder::{self, Folder};

pub const RUNNING_MAX: usize = 8;
pub const WAITING_MAX: usize = 1_000;
const AUDIT: &str = "hooks-audit.jsonl";
/// Counted once per run.
const INVOCATIONS: &str = "waybill_daemon_hook_invocations_total";
const DURATION: &str = "waybill_daemon_hook_duration_seconds";
const UNENFORCEABLE: &str = "waybill_daemon_hook_unenforceable_total";

pub struct Config {
    pub folder: Folder,
    /// The mesh's slug.
    pub mesh: String,
    pub socket: PathBuf,
    /// This executable, which keeps the programs it starts.
    pub own: PathBuf,
    pub settings: config::Hooks,
    /// In CI: nothing runs, not even before a message is sent.
    pub off: bool,
}

impl Config {
    fn hooks_folder(&self) -> PathBuf {
        self.folder.file(folder::HOOKS)
    }
}

/// What a hook says in answer to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Where the message was, or None for an answer to its sender alone.
    pub topic: Option<String>,
    /// The sender's key.
    pub to: String,
    pub reply_to_id: String,
    pub text: String,
    /// The same for every run of the hook about the message, so that it is answered once.
    pub client_message_id: String,
}

/// How answers leave: the way every message of a local program leaves.
pub trait Outward: Send + Sync {
    fn reply(&self, reply: Reply) -> BoxFuture<'static, Result<()>>;
}

#[derive(Clone)]
pub struct Hooks(Arc<Inner>);

struct Inner {
    config: Config,
    settings: RwLock<Arc<HookSettings>>,
    clock: Arc<Clock>,
    entropy: Arc<dyn Entropy>,
    events: Events,
    capabilities: Capabilities,
    fences: Fences,
    audit: Audit,
    places: Arc<Semaphore>,
    waiting: mpsc::Sender<Waiting>,
    /// Taken by the one who runs them.
    line: Mutex<Option<mpsc::Receiver<Waiting>>>,
}

struct Waiting {
    name: String,
    hook: Hook,
    occasion: Arc<Occasion>,
}

impl Hooks {
    /// # Errors
    /// `config_invalid` when hooks.toml cannot be used: a hook that the user counts on must not be missing in silence.
    pub fn open(config: Config, clock: Arc<Clock>, entropy: Arc<dyn Entropy>, events: Events) -> Result<Self> {
        let settings = read(&config)?;
        let (waiting, line) = mpsc::channel(WAITING_MAX);
        let inner = Inner {
            fences: Fences::new(config.own.clone()),
            audit: Audit::at(config.folder.file(AUDIT), config.settings.audit_bytes_max),
            settings: RwLock::new(Arc::new(settings)),
            clock,
            entropy,
            events,
            capabilities: Capabilities::default(),
            places: Arc::new(Semaphore::new(RUNNING_MAX)),
            waiting,
            line: Mutex::new(Some(line)),
            config,
        };
        if inner.config.off {
            tracing::info!("hooks are off: this is a CI environment");
        }
        Ok(Self(Arc::new(inner)))
    }

    /// Tokens that hooks have been given, for whoever answers on the socket.
    pub fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    /// Reads hooks.toml again. What runs goes on as it began; a file that cannot be used changes nothing.
    pub fn reload(&self) -> Result<()> {
        let settings = read(&self.0.config)?;
        *self.0.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        Ok(())
    }

    pub fn startup(&self) {
        let now = self.0.clock.now();
        let data = json!({ "mesh": self.0.config.mesh });
        self.enqueue(Occasion::startup(&format!("startup-{}", now.micros()), now, data));
    }

    /// Runs what waits until the token is cancelled; what runs then is ended with it.
    pub async fn run(&self, outward: Arc<dyn Outward>, stop: CancellationToken) {
        let line = self.0.line.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut line) = line else { return };
        let running = TaskTracker::new();
        loop {
            // The place first: whoever waits for one waits in the line, where it is counted.
            let next = async {
                let place = Arc::clone(&self.0.places).acquire_owned().await.ok()?;
                Some((place, line.recv().await?))
            };
            let next = tokio::select! {
                () = stop.cancelled() => None,
                next = next => next,
            };
            let Some((place, waiting)) = next else { break };
            let (inner, outward, stop) = (Arc::clone(&self.0), Arc::clone(&outward), stop.clone());
            running.spawn(async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = inner.work(&waiting, outward.as_ref()) => {}
                }
                drop(place);
            });
        }
        running.close();
        running.wait().await;
    }

    /// Whether `pre-send` is asked: without it a request need not be read twice.
    pub fn guards_sends(&self) -> bool {
        self.0.enabled(PRE_SEND).is_some()
    }

    /// What is to be sent in the place of `request`, which may be the same.
    ///
    /// # Errors
    /// `hook_refused` when the hook says no, takes too long or cannot be run: a hook that guards what leaves must not be passed by
    /// because it is broken.
    pub async fn pre_send(&self, request: Json) -> Result<Json> {
        let Some(hook) = self.0.enabled(PRE_SEND) else { return Ok(request) };
        let Ok(Ok(_place)) = tokio::time::timeout(hook.timeout(), self.0.places.acquire()).await else {
            return Err(Error::new(Code::DaemonBusy, "As many hooks run as may, and pre-send found no place."));
        };
        let event_id = format!("pre-send-{}", self.0.clock.now().micros());
        let run = Run { name: PRE_SEND, hook: &hook, event_id: &event_id, input: &request, message: None };
        let ran = run.go(&self.0).await;
        self.0.tell(&run, &ran);
        judge(&ran, request)
    }

    fn enqueue(&self, occasion: Occasion) {
        let occasion = Arc::new(occasion);
        for name in &occasion.hooks {
            let Some(hook) = self.0.enabled(name) else { continue };
            let waiting = Waiting { name: name.clone(), hook, occasion: Arc::clone(&occasion) };
            if self.0.waiting.try_send(waiting).is_err() {
                metrics::counter!(INVOCATIONS, "hook" => label(name), "result" => "dropped").increment(1);
                tracing::warn!(hook = %name, event = %occasion.id, "too many hooks wait: this run is dropped");
            }
        }
    }
}

impl Listener for Hooks {
    fn on_event(&self, event: &Arc<Event>) {
        // What a hook reads is a copy of all that the event says, and most daemons have no hook.
        if !self.0.runs_any() {
            return;
        }
        if let Some(occasion) = Occasion::of(event) {
            self.enqueue(occasion);
        }
    }
}

impl Inner {
    fn runs_any(&self) -> bool {
        !self.config.off && self.settings.read().unwrap_or_else(PoisonError::into_inner).has_enabled()
    }

    fn enabled(&self, name: &str) -> Option<Hook> {
        if self.config.off {
            return None;
        }
        let settings = Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner));
        settings.enabled(name).cloned()
    }

    async fn work(&self, waiting: &Waiting, outward: &dyn Outward) {
        let Waiting { name, hook, occasion } = waiting;
        let run =
            Run { name, hook, event_id: &occasion.id, input: &occasion.input, message: occasion.message.as_ref() };
        let ran = run.go(self).await;
        self.tell(&run, &ran);
        if let Some(reply) = reply(&run, &ran)
            && let Err(error) = outward.reply(reply).await
        {
            tracing::warn!(hook = %name, %error, "what a hook answered could not be sent");
        }
    }

    /// One run, told everywhere it is told.
    fn tell(&self, run: &Run<'_>, ran: &Ran) {
        let (result, now) = (ran.result.name(), self.clock.now());
        metrics::counter!(INVOCATIONS, "hook" => label(run.name), "result" => result).increment(1);
        metrics::histogram!(DURATION, "hook" => label(run.name)).record(ran.took.as_secs_f64());
        if !ran.enforced {
            metrics::counter!(UNENFORCEABLE, "hook" => label(run.name)).increment(1);
        }
        let line = run.line(ran, now);
        tracing::info!(target: "hook_audit", hook = run.name, event = run.event_id, result, %line, "a hook has run");
        if run.hook.audit {
            self.audit.write(&line);
        }
        let told = json!({
            "hook": run.name,
            "event_id": run.event_id,
            "result": result,
            "exit_code": ran.exit_code,
            "duration_ms": line["duration_ms"],
        });
        self.events.publish(EventKind::HookExecuted, now, told);
    }
}

fn read(config: &Config) -> Result<HookSettings> {
    let text = config.folder.read_text(folder::HOOKS_CONFIG)?;
    text.map_or_else(|| Ok(HookSettings::default()), |text| HookSettings::read(&text))
}

/// Topics are as many as users make; a label must not be.
fn label(name: &str) -> String {
    if name.starts_with(ON_TOPIC) { "on-topic".to_owned() } else { name.to_owned() }
}

fn judge(ran: &Ran, request: Json) -> Result<Json> {
    let refused = |message: String| Error::new(Code::HookRefused, message);
    match ran.result {
        Outcome::Succeeded if ran.stdout.trim().is_empty() => Ok(request),
        Outcome::Succeeded if ran.stdout_cut => {
            Err(refused("What pre-send printed is longer than its output_size_limit.".to_owned()))
        }
        Outcome::Succeeded => match serde_json::from_str::<Json>(&ran.stdout) {
            // It saw a part of the message, and would send that part.
            Ok(printed) if printed.get("_truncated").is_some() => {
                Err(refused("pre-send printed a request that was cut for it.".to_owned()))
            }
            Ok(printed) if printed.is_object() => Ok(printed),
            _ => Err(refused("What pre-send printed is no request in JSON.".to_owned())),
        },
        Outcome::Failed => Err(refused(format!("pre-send refused the message: {}", ran.reason()))),
        Outcome::TimedOut => Err(refused("pre-send did not end in time.".to_owned())),
        Outcome::NotStarted => Err(refused(format!("pre-send could not be run: {}", ran.reason()))),
    }
}

/// What a hook that may answer has printed. An answer that was cut is none.
fn reply(run: &Run<'_>, ran: &Ran) -> Option<Reply> {
    let Message { id, sender_key, topic, .. } = run.message?;
    let text = ran.stdout.trim_end();
    if !run.hook.allow_reply || ran.result != Outcome::Succeeded || text.is_empty() {
        return None;
    }
    if ran.stdout_cut {
        tracing::warn!(hook = run.name, "what a hook answered is longer than its output_size_limit, and is not sent");
        return None;
    }
    Some(Reply {
        topic: topic.clone(),
        to: sender_key.clone(),
        reply_to_id: id.clone(),
        text: text.to_owned(),
        client_message_id: answer_id(run.name, id),
    })
}

/// Within what an id may have, whatever the message's is.
fn answer_id(hook: &str, message: &str) -> String {
    use sha2::{Digest, Sha256};
    let digest = Sha256::new().chain_update(hook).chain_update([0]).chain_update(message).finalize();
    format!("hook-{}", waybill_kernel::hex::encode(&digest[..16]))
}
