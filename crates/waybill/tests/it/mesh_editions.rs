//! An upgrade that has reached one side only: a broker and a daemon over a real socket, of which one has fewer or other features.
//! Both are this build, made with the set of features of another (`Edition`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use waybill_access::{Access, ServerKey};
use waybill_daemon::directory::{Change, Member, Standing};
use waybill_daemon::events::EventKind;
use waybill_daemon::identity::{Mode, Stance, save_identity};
use waybill_daemon::inbox::Query;
use waybill_daemon::outbox::{Accept, Status};
use waybill_daemon::seal::Draft;
use waybill_daemon::{Config, Daemon, Folder, Handle, Membership};
use waybill_doors::{Commons, Driver, Gatekeeper, Listener, Server};
use waybill_kernel::entropy::OsEntropy;
use waybill_kernel::{Code, Error, Result};
use waybill_mesh::ops::manage::{CreateMesh, CreatedMesh};
use waybill_mesh_door::{Mesh, Opening};
use waybill_mesh_protocol::negotiation::{
    CLIENT_MESSAGE_ID_DEDUPE, CONCURRENT_CONNECTION_POLICY, KEY_EPOCH, MAX_PAYLOAD, MEMBER_KEYPAIR_ROTATED_EVENT,
};
use waybill_mesh_protocol::{DestinationKind, Edition, Identity};
use waybill_store::{Registry, Reply};
use waybill_testkit::stores::{self, TestStore};

use crate::world::until;

const PATIENCE: Duration = Duration::from_secs(60);
const SETTINGS: &str = "[link]\nbackoff_min_ms = 5\nbackoff_max_ms = 20\n[outbox]\nrestart_pause_ms = 0\n";
/// A feature that no build has.
const LATER: &str = "threads";

/// A mesh with its owner alone, on a store that outlives the servers before it.
struct Home {
    test: TestStore,
    mesh: CreatedMesh,
    owner: Identity,
    folder: TempDir,
}

impl Home {
    async fn new(settings: waybill_mesh::Settings) -> Self {
        let test = stores::open_sqlite_set(settings).await.unwrap();
        let owner = Identity::generate(&OsEntropy);
        let create = CreateMesh::new("builds".parse().unwrap(), "owner".parse().unwrap(), owner.public());
        let Reply::Done(mesh) = test.store.run(create, test.admin.clone()).await.unwrap() else { panic!("no mesh") };
        // In /tmp itself: the path of a socket must be short.
        let folder = tempfile::Builder::new().prefix("wb").tempdir_in("/tmp").unwrap();
        Self { test, mesh, owner, folder }
    }

    async fn broker(&self, edition: Edition) -> Broker {
        let (store, settings) = (self.test.store.clone(), waybill_doors::Settings::default());
        let access = Access::new(store.clone(), waybill_access::Settings::default(), &ServerKey::generate(&OsEntropy));
        let driver = Driver::new(Registry::default(), store.clone(), Gatekeeper::new(access, None), PATIENCE);
        let commons = Commons::new(&settings, &OsEntropy);
        let (stopping, stopped) = (CancellationToken::new(), CancellationToken::new());
        let opening = Opening {
            driver,
            store,
            commons: commons.clone(),
            settings: waybill_mesh_door::Settings::default(),
            edition,
            stopped: stopped.clone(),
        };
        let mesh = Mesh::new(opening).await.unwrap();
        let server = Server::new(commons, &settings, stopping.clone());
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.address().unwrap();
        server.open(listener, mesh);
        let running = tokio::spawn(async move {
            server.run().await;
            stopped.cancel();
        });
        Broker { address, stopping, running }
    }

    async fn daemon(&self, broker: &Broker, edition: Edition) -> Running {
        self.daemon_with(broker, edition, &[]).await
    }

    /// The owner's daemon, in the folder that it had before, with messages that were handed over before it connects.
    async fn daemon_with(&self, broker: &Broker, edition: Edition, queued: &[&str]) -> Running {
        let folder = Folder::open(self.folder.path(), "builds").unwrap();
        let membership = Membership {
            server: format!("http://{}", broker.address),
            mesh: self.mesh.mesh_id,
            slug: "builds".to_owned(),
            member: self.mesh.member_id,
            name: "owner".to_owned(),
            owner: self.owner.public(),
            plaintext: false,
        };
        membership.save(&folder).unwrap();
        save_identity(&folder, &self.owner).unwrap();
        folder.write("config.toml", SETTINGS.as_bytes()).unwrap();
        let config = Config {
            home: self.folder.path().to_owned(),
            mesh: "builds".to_owned(),
            stance: Stance { mode: Mode::Persistent, tcp: false, hooks: false, persistent_in_ci: false },
            ephemeral: None,
            own: "/bin/false".into(),
            edition,
            // The broker's, which stands still.
            clock: Arc::clone(self.test.store.clock()),
            entropy: Arc::new(OsEntropy),
        };
        let service = Daemon::open(config).await.unwrap();
        let handle = service.handle();
        let owner = Member {
            id: self.mesh.member_id,
            name: "owner".to_owned(),
            keys: self.owner.public(),
            is_owner: true,
            state: Standing::Active,
        };
        handle.directory().learn(vec![Change::Member(owner)]).await.unwrap();
        for id in queued {
            hand_over(&handle, &self.owner, id).await;
        }
        let token = CancellationToken::new();
        let task = tokio::spawn(service.run(token.clone()));
        Running { handle, token, task }
    }
}

/// From the owner to itself: over the broker and back.
async fn hand_over(handle: &Handle, owner: &Identity, id: &str) {
    let draft = Draft {
        destination_kind: DestinationKind::Dm,
        destination_ref: owner.public_key().to_string(),
        reply_to: None,
        priority: Default::default(),
        meta: None,
        body: id.to_owned(),
        mentions: Vec::new(),
    };
    let accept = Accept {
        client_message_id: id.to_owned(),
        request_fingerprint: *draft.request_fingerprint().unwrap().as_bytes(),
        request: serde_json::to_string(&draft).unwrap(),
        parcel: handle.link().parts().sealer.seal(id, &draft).unwrap(),
    };
    handle.outbox().accept(accept).await.unwrap();
}

struct Broker {
    address: SocketAddr,
    stopping: CancellationToken,
    running: JoinHandle<()>,
}

impl Broker {
    async fn stop(self) {
        self.stopping.cancel();
        tokio::time::timeout(PATIENCE, self.running).await.unwrap().unwrap();
    }

    /// What it says to whoever asks.
    async fn compat(&self) -> Json {
        let client = waybill_guard::client().no_proxy().build().unwrap();
        let url = format!("http://{}/mesh/v1/compat", self.address);
        serde_json::from_str(&client.get(url).send().await.unwrap().text().await.unwrap()).unwrap()
    }
}

struct Running {
    handle: Handle,
    token: CancellationToken,
    task: JoinHandle<Result<()>>,
}

impl Running {
    async fn send(&self, home: &Home, id: &str) {
        hand_over(&self.handle, &home.owner, id).await;
    }

    async fn status(&self, id: &str) -> Status {
        self.handle.outbox().known(id).await.unwrap().unwrap().status
    }

    async fn arrives(&self, id: &str) {
        until(id, || async {
            let inbox = self.handle.link().parts().inbox.page(Query::default()).await.unwrap();
            inbox.messages.iter().any(|message| message.body == id) && self.status(id).await == Status::Done
        })
        .await;
    }

    /// What it says to whoever asks.
    async fn compat(&self) -> Json {
        let mut socket = UnixStream::connect(self.handle.folder().socket().unwrap()).await.unwrap();
        let request = b"GET /v1/compat HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        socket.write_all(request).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    /// By name, as the broker has answered.
    fn features(&self) -> Vec<String> {
        let features = self.handle.link().status().features.unwrap();
        features.as_object().unwrap().keys().cloned().collect()
    }

    async fn stop(self) {
        self.token.cancel();
        tokio::time::timeout(PATIENCE, self.task).await.unwrap().unwrap().unwrap();
    }

    /// What it ends with by itself.
    async fn ended(self) -> Error {
        tokio::time::timeout(PATIENCE, self.task).await.expect("the daemon goes on").unwrap().unwrap_err()
    }
}

fn now() -> Edition {
    Edition::default()
}

/// Before topics had keys of epochs, and rotations were told.
fn before() -> Edition {
    now().without(KEY_EPOCH).without(MEMBER_KEYPAIR_ROTATED_EVENT).without(CONCURRENT_CONNECTION_POLICY)
}

async fn home() -> Home {
    Home::new(waybill_mesh::Settings::default()).await
}

#[tokio::test]
async fn a_newer_broker_serves_the_daemons_that_are_there() {
    let home = home().await;
    let newer = now().with(LATER, 1).with(CLIENT_MESSAGE_ID_DEDUPE, 3).with(MAX_PAYLOAD, 2);
    let broker = home.broker(newer).await;
    assert_eq!(broker.compat().await["features"][LATER], json!({ "version": 1 }));
    for edition in [now(), before()] {
        let asked = edition.request().require;
        let daemon = home.daemon(&broker, edition).await;
        let id = format!("with {} features", asked.len());
        daemon.send(&home, &id).await;
        daemon.arrives(&id).await;
        assert_eq!(daemon.features(), asked, "it is told of what it asked for and of nothing else");
        let compat = daemon.compat().await;
        assert_eq!((&compat["compatible"], &compat["requires"]), (&json!(true), &json!(asked)));
        daemon.stop().await;
    }
    broker.stop().await;
}

#[tokio::test]
async fn a_newer_daemon_does_without_what_it_only_wishes_for() {
    let home = home().await;
    let broker = home.broker(now()).await;
    let daemon = home.daemon(&broker, now().with_optional(LATER, 1)).await;
    daemon.send(&home, "without threads").await;
    daemon.arrives("without threads").await;
    assert_eq!(daemon.features(), now().request().require);
    daemon.stop().await;
    // Where both have it, it is agreed on.
    let newer = home.broker(now().with(LATER, 2)).await;
    let daemon = home.daemon(&newer, now().with_optional(LATER, 1)).await;
    daemon.send(&home, "with threads").await;
    daemon.arrives("with threads").await;
    assert!(daemon.features().contains(&LATER.to_owned()));
    daemon.stop().await;
}

#[tokio::test]
async fn a_required_feature_that_is_missing_ends_the_daemon_which_says_what_it_is() {
    use Code::{FeatureMissing, FeatureParameterBelowFloor};
    let forgetful = waybill_mesh::Settings { dedupe_retention_days: 6, ..waybill_mesh::Settings::default() };
    let usual = waybill_mesh::Settings::default;
    for (settings, broker, daemon, code, named) in [
        // Older brokers.
        (usual(), before(), now(), FeatureMissing, CONCURRENT_CONNECTION_POLICY),
        (usual(), now().without(KEY_EPOCH), now(), FeatureMissing, KEY_EPOCH),
        (usual(), now().with(CLIENT_MESSAGE_ID_DEDUPE, 1), now(), FeatureMissing, CLIENT_MESSAGE_ID_DEDUPE),
        (forgetful, now(), now(), FeatureParameterBelowFloor, "dedupe_retention_days"),
        // Newer daemons.
        (usual(), now(), now().with(LATER, 1), FeatureMissing, LATER),
        (usual(), now(), now().with(MAX_PAYLOAD, 2), FeatureMissing, MAX_PAYLOAD),
    ] {
        let home = Home::new(settings).await;
        let broker = home.broker(broker).await;
        let daemon = home.daemon(&broker, daemon).await;
        let (handle, mut events) = (daemon.handle.clone(), daemon.handle.events().subscribe(Some(0)));
        let error = daemon.ended().await;
        assert_eq!(error.code(), code, "{named}: {error}");
        assert!(error.message().contains(named), "{error}");
        assert_ne!(code.entry().exit, 0);
        let told = events.next().await.unwrap().event;
        assert_eq!(told.kind, EventKind::FeatureNegotiationFailed, "{named}");
        assert_eq!(told.data["message"], error.message());
        assert_eq!(handle.link().status().ended, Some(code));
        broker.stop().await;
    }
}

#[tokio::test]
async fn what_was_queued_before_an_older_broker_is_sent_when_the_broker_is_upgraded() {
    let home = home().await;
    let older = home.broker(before()).await;
    let daemon = home.daemon_with(&older, now(), &["early"]).await;
    assert_eq!(daemon.ended().await.code(), Code::FeatureMissing);
    older.stop().await;
    let upgraded = home.broker(now()).await;
    let daemon = home.daemon(&upgraded, now()).await;
    daemon.arrives("early").await;
    daemon.stop().await;
    upgraded.stop().await;
}
