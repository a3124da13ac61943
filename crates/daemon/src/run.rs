//! The daemon as a whole: what it opens, in which order, what runs while it runs, and how it ends.
//!
//! `Config → Daemon::open → Service::run(token) → Handle`. Whatever can be refused is refused by `open`, before a socket answers.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::json;
use tokio::sync::{Mutex, Notify, oneshot};
use tokio_util::sync::CancellationToken;
use waybill_kernel::{Clock, Code, Entropy, Error, Result};
use waybill_mesh_protocol::{DestinationKind, Edition, Identity};

use crate::config::Settings;
use crate::directory::Directory;
use crate::events::{EventKind, Events, Listener};
use crate::files::Files;
use crate::folder::{self, Folder};
use crate::hooks::{self, Hooks, Outward, Reply};
use crate::host::{self, Host};
use crate::identity::{self, Membership, Mode, Stance};
use crate::inbox::{self, Inbox};
use crate::ipc::{self, Listeners, Local};
use crate::link::{Broker, Link, LinkHandle, Parts, Presence};
use crate::lock::Lock;
use crate::metrics;
use crate::outbox::{self, Outbox, Pressure, Verdict};
use crate::reseal::Resealer;
use crate::rotation::{self, Archive, Rotator};
use crate::seal::{Draft, Keyring, Sealer};
use crate::token::Tokens;

/// Raised by every migration of either file.
pub const SCHEMA_VERSION: i32 = (outbox::MIGRATIONS.len() + inbox::MIGRATIONS.len()) as i32;
/// What histograms were told is kept one by one until it is added up.
const UPKEEP: Duration = Duration::from_secs(1);

pub struct Config {
    /// `$WAYBILL_HOME`.
    pub home: PathBuf,
    /// The mesh's slug.
    pub mesh: String,
    pub stance: Stance,
    /// Of a daemon whose keys are in memory alone; the folder's otherwise.
    pub ephemeral: Option<(Membership, Identity)>,
    /// This executable, which keeps the hooks it starts.
    pub own: PathBuf,
    /// What is asked of the broker.
    pub edition: Edition,
    pub clock: Arc<Clock>,
    pub entropy: Arc<dyn Entropy>,
}

pub struct Daemon;

/// Opened: the folder is locked, the files are sound, the listeners are bound.
pub struct Service {
    local: Arc<Local>,
    link: Link,
    listeners: Listeners,
    mode: Mode,
    _lock: Lock,
}

/// What others in the process may see of a daemon, and how they stop it.
#[derive(Clone)]
pub struct Handle {
    local: Arc<Local>,
    tcp: Option<SocketAddr>,
}

impl Daemon {
    /// # Errors
    /// `daemon_running`, `schema_too_new`, `outbox_damaged`, `host_fingerprint_mismatch`, `config_invalid` and those of files
    /// that cannot be used; nothing is left running.
    pub async fn open(config: Config) -> Result<Service> {
        let folder = Folder::open(&config.home, &config.mesh)?;
        let lock = Lock::take(&folder)?;
        folder.refuse_newer_schema(SCHEMA_VERSION)?;
        let settings = folder.settings()?;
        let recorder = metrics::recorder()?;
        let (membership, identity) = match (config.ephemeral, config.stance.mode) {
            (Some((membership, identity)), _) => (membership, identity),
            (None, Mode::Persistent) => member_of(&folder)?,
            // Its end would remove the member whose keys the folder keeps.
            (None, Mode::Ephemeral { .. }) => return Err(Error::invalid("An ephemeral daemon needs keys of its own.")),
        };
        if config.stance.mode == Mode::Persistent {
            host::check(&folder, &Host::read("/".as_ref()), settings.clone.policy, config.entropy.as_ref())?;
        }
        if config.stance.persistent_in_ci {
            tracing::warn!(
                "persistent_keypair_in_ci_environment: others who use this machine may use the member's key"
            );
        }
        let Config { clock, entropy, edition, .. } = config;
        let base = Base { folder, settings, membership, edition, clock, entropy, recorder };
        base.open(identity, config.stance, config.own, lock).await
    }
}

fn member_of(folder: &Folder) -> Result<(Membership, Identity)> {
    match (Membership::load(folder)?, identity::load_identity(folder)?) {
        (Some(membership), Some(identity)) => Ok((membership, identity)),
        _ => {
            let message = format!("{} holds no membership.", folder.path().display());
            Err(Error::new(Code::DataFolderUnusable, message)
                .with_cure("Join the mesh with `waybill mesh join <invite>`, or make it with `waybill mesh create`."))
        }
    }
}

/// What everything else is made from.
struct Base {
    folder: Folder,
    settings: Settings,
    membership: Membership,
    edition: Edition,
    clock: Arc<Clock>,
    entropy: Arc<dyn Entropy>,
    recorder: PrometheusHandle,
}

impl Base {
    async fn open(self, identity: Identity, stance: Stance, own: PathBuf, lock: Lock) -> Result<Service> {
        let Self { folder, settings, membership, edition, clock, entropy, recorder } = self;
        let outbox = Outbox::open(&folder.file(folder::OUTBOX), settings.outbox.clone(), &clock, &entropy).await?;
        let of_another = outbox.belongs_to(&membership.member.to_string()).await?;
        if of_another > 0 {
            tracing::warn!(count = of_another, "messages that another member has left in the outbox are dead");
        }
        let (inbox_store, _) = inbox::open_store(&folder.file(folder::INBOX), &clock, &entropy).await?;
        folder.keep_schema_version(SCHEMA_VERSION)?;
        let directory = Directory::open(inbox_store.clone(), membership.owner.ed25519, membership.plaintext).await?;
        let inbox = Inbox::new(inbox_store, settings.inbox.clone());
        let events = Events::new(clock.now(), settings.events.ring);
        let (archive, _) = Archive::load(&folder.file(folder::KEYPAIR_ARCHIVE), clock.now())?;
        let keyring = Keyring::new(identity, archive);
        let sealer = Sealer::new(membership.mesh, directory.clone(), keyring.clone(), Arc::clone(&entropy));
        let resealer = Resealer::new(outbox.clone(), sealer.clone());
        let broker = Broker::new(
            &membership.server,
            membership.mesh,
            keyring.clone(),
            Arc::clone(&clock),
            Arc::clone(&entropy),
        )?;
        let files = Files::new(inbox.store().clone(), broker.clone(), Arc::clone(&entropy), settings.files.clone());
        let is_kept = stance.mode == Mode::Persistent;
        let rotation_config = rotation::Config {
            folder: is_kept.then(|| folder.clone()),
            settings: settings.rotation.clone(),
            mesh: membership.mesh,
            member: membership.member,
        };
        let rotator = Rotator::new(
            rotation_config,
            broker.clone(),
            keyring.clone(),
            directory.clone(),
            resealer.clone(),
            Arc::clone(&clock),
            Arc::clone(&entropy),
        );
        let parts = Arc::new(Parts {
            settings: settings.link.clone(),
            edition,
            server: membership.server.clone(),
            mesh: membership.mesh,
            slug: membership.slug.clone(),
            member: membership.member,
            owner: membership.owner.ed25519,
            keyring: keyring.clone(),
            sealer: sealer.clone(),
            resealer,
            directory: directory.clone(),
            inbox: inbox.clone(),
            outbox: outbox.clone(),
            events: events.clone(),
            files,
            broker,
            rotator,
            clock: Arc::clone(&clock),
            entropy: Arc::clone(&entropy),
            presence: Presence::default(),
            refresh: Notify::new(),
            refreshed: Notify::new(),
        });
        let (link, link_handle) = Link::new(parts);
        let hooks_config = hooks::Config {
            folder: folder.clone(),
            mesh: membership.slug.clone(),
            socket: folder.socket()?,
            own,
            settings: settings.hooks.clone(),
            off: !stance.hooks,
        };
        let hooks = Hooks::open(hooks_config, Arc::clone(&clock), Arc::clone(&entropy), events.clone())?;
        events.add_listener(Arc::new(hooks.clone()) as Arc<dyn Listener>);
        let tokens = Tokens::open(&folder, entropy.as_ref())?;
        let tcp_port = (stance.tcp && settings.ipc.tcp).then_some(settings.ipc.tcp_port);
        let listeners = Listeners::bind(&folder, tcp_port).await?;
        let local = Local {
            started: clock.now(),
            schema_version: SCHEMA_VERSION,
            link_status: link_handle.watch(),
            link: link_handle,
            stop: CancellationToken::new(),
            lining_up: Mutex::default(),
            profiling: Mutex::default(),
            folder,
            settings,
            membership,
            clock,
            entropy,
            tokens,
            outbox,
            inbox,
            events,
            directory,
            keyring,
            sealer,
            hooks,
            recorder,
        };
        Ok(Service { local: Arc::new(local), link, listeners, mode: stance.mode, _lock: lock })
    }
}

impl Service {
    pub fn handle(&self) -> Handle {
        Handle { local: Arc::clone(&self.local), tcp: self.listeners.tcp_address() }
    }

    /// Until the token is cancelled, a caller on the socket asks for the end, the time of an ephemeral member is over, or the
    /// link has ended for good: then with the error that says why.
    pub async fn run(self, token: CancellationToken) -> Result<()> {
        let Self { local, link, listeners, mode, _lock } = self;
        let stop = local.stop.clone();
        local.hooks.startup();
        let outward: Arc<dyn Outward> = Arc::new(Replies(Arc::clone(&local)));
        let over = CancellationToken::new();
        // Whatever becomes of this daemon, the thread of its link ends with it.
        let _over = over.clone().drop_guard();
        let ended = async {
            let result = apart(link, stop.clone(), over).await;
            stop.cancel();
            result
        };
        let told = async {
            tokio::select! {
                () = token.cancelled() => {}
                () = stop.cancelled() => {}
                () = life(mode) => tracing::info!("the time of this ephemeral member is over"),
            }
            stop.cancel();
        };
        let (result, ..) = tokio::join!(
            ended,
            told,
            listeners.serve(Arc::clone(&local)),
            local.hooks.run(outward, stop.clone()),
            sweep_outbox(&local),
            sweep_inbox(&local),
            sweep_archive(&local),
            upkeep(&local),
        );
        // Also when the link has ended for good: nobody has its keys from here on.
        let is_revoked = result.as_ref().is_err_and(|error: &Error| error.code() == Code::MemberRevoked);
        if matches!(mode, Mode::Ephemeral { .. }) && !is_revoked {
            leave(&local).await;
        }
        close(&local).await;
        result
    }
}

/// Runs the link to its end on a thread of its own, which waits for the link's socket and times too: elsewhere another thread would
/// hear of each frame and wake this one, and the commits of the link would be begun by it and their ends be passed on.
///
/// The thread goes on until `over`: others may use connections that were made for the link, and what the link has begun to store
/// comes to its end.
async fn apart(link: Link, stop: CancellationToken, over: CancellationToken) -> Result<()> {
    let (tell, told) = oneshot::channel();
    let work = move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                let _ = tell.send(Err(Error::internal(error)));
                return;
            }
        };
        runtime.block_on(async {
            tokio::select! {
                ended = link.run(stop) => {
                    let _ = tell.send(ended);
                }
                () = over.cancelled() => return,
            }
            over.cancelled().await;
        });
    };
    std::thread::Builder::new().name("link".to_owned()).spawn(work).map_err(Error::internal)?;
    told.await.unwrap_or_else(|_| Err(Error::internal("the thread of the link has ended before the link")))
}

/// How long a member with a time of its own lives.
async fn life(mode: Mode) {
    match mode {
        Mode::Ephemeral { ttl: Some(ttl) } => tokio::time::sleep(ttl).await,
        _ => std::future::pending().await,
    }
}

/// The broker forgets a member whose keys end with this process.
async fn leave(local: &Local) {
    let left: Result<serde_json::Value> = local.link.parts().broker.post("mesh/v1/leave", &json!({})).await;
    if let Err(error) = left {
        tracing::warn!(%error, "the ephemeral member could not be removed at the broker");
    }
}

async fn close(local: &Arc<Local>) {
    let stores = [local.outbox.store().clone(), local.inbox.store().clone()];
    let closed = tokio::task::spawn_blocking(move || stores.iter().for_each(waybill_store::Store::close)).await;
    if let Err(error) = closed {
        tracing::error!(%error, "the databases were not closed in order");
    }
}

/// Size and age of the outbox.
async fn sweep_outbox(local: &Local) {
    let mut before = Pressure::Normal;
    while pause(local, local.outbox.sweep_interval()).await {
        let swept = async {
            let used = local.outbox.measure().await?;
            let ended = local.outbox.expire().await?;
            if ended > 0 {
                tracing::warn!(count = ended, "messages have become too old to be sent, and are dead");
            }
            Result::Ok(used)
        };
        match swept.await {
            Ok(used) => before = pressed(local, used, before),
            Err(error) => tracing::error!(%error, "the outbox could not be swept"),
        }
    }
}

/// Tells of pressure when it begins or rises, not at every look.
fn pressed(local: &Local, used_bytes: u64, before: Pressure) -> Pressure {
    let now = local.outbox.pressure();
    if now > before {
        let data = json!({ "pressure": now, "percent": local.outbox.used_percent(), "used_bytes": used_bytes });
        tracing::warn!(%data, "the outbox runs out of room");
        local.events.publish(EventKind::OutboxPressureHigh, local.clock.now(), data);
    }
    now
}

async fn sweep_inbox(local: &Local) {
    while pause(local, local.inbox.sweep_interval()).await {
        if let Err(error) = local.inbox.prune().await {
            tracing::error!(%error, "the inbox could not be swept");
        }
    }
}

/// Archived keys whose time is over, and files that the broker has let go.
async fn sweep_archive(local: &Local) {
    let parts = local.link.parts();
    while pause(local, parts.rotator.clean_up_interval()).await {
        if let Err(error) = parts.rotator.clean_up().await {
            tracing::error!(%error, "the archive of keys could not be cleaned up");
        }
        if let Err(error) = parts.files.expire().await {
            tracing::error!(%error, "the list of files could not be cleaned up");
        }
    }
}

async fn upkeep(local: &Local) {
    while pause(local, UPKEEP).await {
        local.recorder.run_upkeep();
    }
}

/// False when the daemon stops.
async fn pause(local: &Local, time: Duration) -> bool {
    tokio::select! {
        () = local.stop.cancelled() => false,
        () = tokio::time::sleep(time) => true,
    }
}

/// Answers of hooks leave as messages of local programs do.
struct Replies(Arc<Local>);

impl Outward for Replies {
    fn reply(&self, reply: Reply) -> BoxFuture<'static, Result<()>> {
        let local = Arc::clone(&self.0);
        Box::pin(async move {
            let (kind, reference) = match reply.topic {
                Some(topic) => (DestinationKind::Topic, topic),
                None => (DestinationKind::Dm, reply.to),
            };
            let draft = Draft {
                destination_kind: kind,
                destination_ref: reference,
                reply_to: Some(reply.reply_to_id.parse()?),
                priority: Default::default(),
                meta: None,
                body: reply.text,
                mentions: Vec::new(),
            };
            match ipc::take(&local, reply.client_message_id, &draft).await? {
                Verdict::Conflict(conflict) => Err(Error::new(Code::IdempotencyKeyReused, conflict.name)),
                Verdict::Insert => {
                    metrics::accepted();
                    Ok(())
                }
                _ => Ok(()),
            }
        })
    }
}

impl Handle {
    pub fn stop(&self) {
        self.local.stop.cancel();
    }

    pub fn folder(&self) -> &Folder {
        &self.local.folder
    }

    /// None where TCP is off.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp
    }

    pub fn outbox(&self) -> &Outbox {
        &self.local.outbox
    }

    pub fn directory(&self) -> &Directory {
        &self.local.directory
    }

    pub fn events(&self) -> &Events {
        &self.local.events
    }

    pub fn link(&self) -> &LinkHandle {
        &self.local.link
    }
}
