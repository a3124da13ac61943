//! A mesh as its users meet it: one server, members with folders of their own, a daemon each.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value as Json, json};
use waybill_kernel::Code;
use waybill_testkit::server;

use crate::sqs::Client;
use crate::world::{Ended, World, until};

/// One user: a WAYBILL_HOME, and the daemons that run on it.
pub struct User {
    /// In /tmp itself: the path of a socket must be short.
    pub home: tempfile::TempDir,
    data: PathBuf,
}

/// Set where tests run, and would make every daemon an ephemeral one.
const SURROUNDINGS: &[&str] =
    &["CI", "GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE", "CIRCLECI", "JENKINS_URL", "KUBERNETES_SERVICE_HOST"];

impl User {
    pub fn new(world: &World) -> Self {
        let home = tempfile::Builder::new().prefix("wb").tempdir_in("/tmp").unwrap();
        Self { home, data: world.server.data_dir.clone() }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(server::binary());
        let ours =
            std::env::vars_os().map(|(name, _)| name).filter(|name| name.to_string_lossy().starts_with("WAYBILL_"));
        for name in ours {
            command.env_remove(name);
        }
        for name in SURROUNDINGS {
            command.env_remove(name);
        }
        command.env("WAYBILL_HOME", self.home.path()).env("WAYBILL_DATA", &self.data);
        command.args(args).stdin(Stdio::null());
        command
    }

    pub fn run(&self, args: &[&str]) -> Ended {
        let output = self.command(args).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ended { exit: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    pub fn json(&self, args: &[&str]) -> Json {
        let ended = self.run(&[args, &["--json"]].concat());
        assert_eq!(ended.exit, 0, "{args:?}: {}", ended.stderr);
        ended.json()
    }

    pub fn folder(&self, slug: &str) -> PathBuf {
        self.home.path().join("daemon").join(slug)
    }

    pub fn up(&self, slug: &str) {
        // What hooks and sockets do is no concern here; a quick link is.
        let settings =
            "[link]\nbackoff_min_ms = 50\nbackoff_max_ms = 500\n[outbox]\nbackoff_min_ms = 50\nrestart_pause_ms = 50\n";
        std::fs::write(self.folder(slug).join("config.toml"), settings).unwrap();
        self.json(&["daemon", "up", "--mesh", slug]);
    }

    pub async fn connected(&self, slug: &str) {
        until("the daemon is connected", || async {
            self.json(&["daemon", "status", "--mesh", slug])["connected"] == true
        })
        .await;
    }

    fn inbox(&self, slug: &str) -> Vec<Json> {
        self.json(&["inbox", "--mesh", slug])["messages"].as_array().unwrap().clone()
    }

    pub async fn gets(&self, slug: &str, body: &str) -> Json {
        until(body, || async { self.inbox(slug).iter().any(|message| message["body"] == body) }).await;
        self.inbox(slug).into_iter().find(|message| message["body"] == body).unwrap()
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // A test that failed leaves no daemon behind.
        let _ = self.run(&["daemon", "down", "--all"]);
        if std::thread::panicking() {
            let logs = std::fs::read_dir(self.home.path().join("daemon")).into_iter().flatten().flatten();
            for log in logs {
                let text = |name: &str| std::fs::read_to_string(log.path().join(name)).unwrap_or_default();
                let told = format!("{}:\n{}{}\n", log.path().display(), text("daemon.log"), text("daemon.stderr"));
                let _ = std::io::Write::write_all(&mut std::io::stderr(), told.as_bytes());
            }
        }
    }
}

#[tokio::test]
async fn two_members_write_to_each_other_and_to_a_topic_until_one_is_revoked() {
    let world = World::start().await;
    let (alice, bob) = (User::new(&world), User::new(&world));
    let made = alice.json(&["mesh", "create", "team", "--name", "alice"]);
    assert_eq!((&made["slug"], &made["name"]), (&json!("team"), &json!("alice")));
    let invite = alice.json(&["mesh", "invite", "team"])["invite"].as_str().unwrap().to_owned();
    let joined = bob.json(&["mesh", "join", &invite, "--name", "bob"]);
    assert_eq!(joined["name"], "bob");
    let again = User::new(&world).run(&["mesh", "join", &invite, "--name", "carol"]);
    again.must_be(Code::InviteUsedUp, "an invite for one");
    for user in [&alice, &bob] {
        user.up("team");
    }
    for user in [&alice, &bob] {
        user.connected("team").await;
    }

    // A direct message, its answer, and the same again.
    let sent = alice.json(&["send", "bob", "hello", "--id", "m-1"]);
    assert_eq!((&sent["client_message_id"], &sent["duplicate"]), (&json!("m-1"), &json!(false)));
    let got = bob.gets("team", "hello").await;
    assert_eq!((&got["sender_name"], &got["client_message_id"]), (&json!("alice"), &json!("m-1")));
    until("the outbox is told", || async { alice.json(&["send", "bob", "hello", "--id", "m-1"])["duplicate"] == true })
        .await;
    let conflict = alice.run(&["send", "bob", "other", "--id", "m-1"]);
    conflict.must_be(Code::IdempotencyKeyReused, "an id means one message");
    bob.json(&["send", "alice", "yes?", "--reply-to", "m-1"]);
    assert_eq!(alice.gets("team", "yes?").await["reply_to_id"], "m-1");
    // A page says where the rest is.
    alice.json(&["send", "bob", "and more"]);
    bob.gets("team", "and more").await;
    let page = bob.run(&["inbox", "--limit", "1"]);
    assert!(page.stdout.contains("hello") && !page.stdout.contains("and more"), "{}", page.stdout);
    assert!(page.stderr.contains("There are more: --cursor "), "{}", page.stderr);
    let cursor = bob.json(&["inbox", "--limit", "1"])["next_cursor"].as_str().unwrap().to_owned();
    let rest = bob.json(&["inbox", "--cursor", &cursor]);
    assert_eq!((&rest["messages"][0]["body"], &rest["next_cursor"]), (&json!("and more"), &json!(null)));
    let found = bob.json(&["inbox", "--search", "hello", "--limit", "1000"]);
    assert_eq!(found["messages"].as_array().unwrap().len(), 1);
    let peers = alice.json(&["peers"]);
    let names: Vec<&str> = peers["peers"].as_array().unwrap().iter().filter_map(|peer| peer["name"].as_str()).collect();
    assert!(names.contains(&"bob"), "{peers}");

    // A topic, whose key both get.
    alice.json(&["mesh", "topics", "create", "team", "builds"]);
    bob.json(&["mesh", "topics", "subscribe", "team", "builds"]);
    until("a post is taken", || async { bob.run(&["post", "builds", "green"]).exit == 0 }).await;
    assert_eq!(alice.gets("team", "green").await["topic"], "builds");
    let unknown = bob.run(&["post", "nowhere", "x"]);
    unknown.must_be(Code::TopicUnknown, "a topic that is none");

    let checked = alice.json(&["mesh", "check", "team"]);
    assert!(checked["findings"] == json!([]) && checked["looked_at"].as_i64() > Some(0), "{checked}");

    // Revoked, its daemon ends and says why.
    let key = joined["key"].as_str().unwrap();
    alice.json(&["mesh", "member", "revoke", key, "--mesh", "team"]);
    until("the daemon of a revoked member ends", || async {
        let ps = bob.json(&["daemon", "ps"]);
        ps["daemons"][0]["state"] == "stopped"
    })
    .await;
    // Its last lines are written after its lock is free.
    until("the log says why", || async { bob.run(&["daemon", "logs", "-n", "50"]).stdout.contains("member_revoked") })
        .await;

    let down = alice.json(&["daemon", "down"]);
    assert_eq!(down["daemons"][0]["was_running"], true);
    assert_eq!(alice.json(&["daemon", "down"])["daemons"][0]["was_running"], false);
}

#[tokio::test]
async fn whoever_has_just_joined_can_be_written_to_at_once() {
    let world = World::start().await;
    let (alice, bob) = (User::new(&world), User::new(&world));
    alice.json(&["mesh", "create", "team", "--name", "alice"]);
    alice.up("team");
    alice.connected("team").await;
    let invite = alice.json(&["mesh", "invite", "team"])["invite"].as_str().unwrap().to_owned();
    bob.json(&["mesh", "join", &invite, "--name", "bob"]);
    // No frame has named him: he was never connected.
    alice.json(&["send", "bob", "welcome"]);
    alice.run(&["send", "nobody", "x"]).must_be(Code::MemberUnknown, "a member that is none");
    bob.up("team");
    bob.gets("team", "welcome").await;
}

#[tokio::test]
async fn without_a_daemon_a_message_is_sent_directly_and_that_is_said() {
    let world = World::start().await;
    let (alice, bob) = (User::new(&world), User::new(&world));
    alice.json(&["mesh", "create", "team", "--name", "alice"]);
    let invite = alice.json(&["mesh", "invite", "team"])["invite"].as_str().unwrap().to_owned();
    bob.json(&["mesh", "join", &invite, "--name", "bob"]);
    let sent = alice.run(&["send", "bob", "early", "--id", "d-1", "--json"]);
    assert_eq!(sent.exit, 0, "{}", sent.stderr);
    assert!(sent.stderr.contains("No daemon runs"), "{}", sent.stderr);
    assert_eq!(sent.json()["duplicate"], false);
    assert_eq!(alice.json(&["send", "bob", "early", "--id", "d-1"])["duplicate"], true, "the same bytes again");
    let again = alice.run(&["send", "bob", "late", "--id", "d-1", "--json"]);
    again.must_be(Code::IdempotencyKeyReused, "another message under the same id");
    bob.up("team");
    bob.gets("team", "early").await;
    let inbox = alice.run(&["inbox"]);
    inbox.must_be_cured(Code::DaemonUnreachable, "waybill daemon up --mesh team", "no daemon to ask");
}

#[tokio::test]
async fn without_a_daemon_nothing_is_sealed_for_keys_that_were_replaced() {
    let world = World::start().await;
    let (alice, bob) = (User::new(&world), User::new(&world));
    alice.json(&["mesh", "create", "team", "--name", "alice"]);
    let invite = alice.json(&["mesh", "invite", "team"])["invite"].as_str().unwrap().to_owned();
    bob.json(&["mesh", "join", &invite, "--name", "bob"]);
    alice.json(&["send", "bob", "before"]);
    bob.up("team");
    bob.connected("team").await;
    let rotated = bob.json(&["daemon", "rotate-keypair"]);
    let (old, new) = (rotated["old"].as_str().unwrap(), rotated["new"].as_str().unwrap());
    for to in ["bob", old, new] {
        let refused = alice.run(&["send", to, "after", "--json"]);
        refused.must_be_cured(Code::MemberUnknown, "waybill daemon up", to);
    }
    alice.up("team");
    until("alice has followed the change", || async {
        let peers = alice.json(&["peers"]);
        peers["peers"].as_array().unwrap().iter().any(|peer| peer["pubkey"] == new)
    })
    .await;
    alice.json(&["daemon", "down"]);
    alice.json(&["send", "bob", "after"]);
    bob.gets("team", "after").await;
}

#[tokio::test]
async fn a_mesh_whose_answer_was_lost_is_had_by_asking_again() {
    let world = World::start().await;
    let (alice, other) = (User::new(&world), User::new(&world));
    let create = ["mesh", "create", "team", "--name", "alice"];
    let made = alice.json(&create);
    std::fs::remove_file(alice.folder("team").join("membership.json")).unwrap();
    assert_eq!(alice.json(&create), made);
    other.run(&create).must_be(Code::AlreadyExists, "the slug of another owner");
    alice.up("team");
    alice.connected("team").await;
}

#[tokio::test]
async fn a_copy_whose_answer_was_lost_becomes_its_new_member_by_asking_again() {
    let world = World::start().await;
    let (alice, bob, carol) = (User::new(&world), User::new(&world), User::new(&world));
    let invite = |slug: &str| alice.json(&["mesh", "invite", slug])["invite"].as_str().unwrap().to_owned();
    for slug in ["team", "crew"] {
        alice.json(&["mesh", "create", slug, "--name", "alice"]);
    }
    bob.json(&["mesh", "join", &invite("team"), "--name", "bob"]);
    // Of another mesh: it is refused before it is used up.
    let crew = invite("crew");
    let refused = bob.run(&["daemon", "remint", "--mesh", "team", "--invite", &crew, "--name", "copy", "--json"]);
    refused.must_be(Code::InvalidRequest, "an invite for another mesh");
    carol.json(&["mesh", "join", &crew, "--name", "carol"]);
    // The server knows the new keys, and the answer was lost.
    let team = invite("team");
    let lost = carol.json(&["mesh", "join", &team, "--name", "copy"]);
    let kept = bob.folder("team").join("keypair-remint.json");
    std::fs::copy(carol.folder("team").join("keypair.json"), &kept).unwrap();
    let made = bob.json(&["daemon", "remint", "--mesh", "team", "--invite", &team, "--name", "copy"]);
    assert_eq!((&made["member_id"], &made["key"]), (&lost["member_id"], &lost["key"]));
    assert!(!kept.exists());
    bob.up("team");
    bob.connected("team").await;
}

#[tokio::test]
async fn members_send_to_a_queue_that_the_owner_has_allowed_until_an_operator_ends_the_mesh() {
    let world = World::start().await;
    let (alice, bob) = (User::new(&world), User::new(&world));
    alice.json(&["mesh", "create", "team", "--name", "alice", "--plaintext"]);
    let invite = alice.json(&["mesh", "invite", "team"])["invite"].as_str().unwrap().to_owned();
    bob.json(&["mesh", "join", &invite, "--name", "bob"]);
    let client = Client::new(&world).await;
    let url = client.queue("jobs").await;
    let early = bob.run(&["send", "--queue", "jobs", "early", "--json"]);
    early.must_be(Code::DestinationUnknown, "a queue that nobody has allowed");
    let none = alice.run(&["mesh", "queues", "allow", "team", "none", "--json"]);
    none.must_be(Code::QueueDoesNotExist, "a queue that there is not");
    let members = bob.run(&["mesh", "queues", "allow", "team", "jobs", "--json"]);
    members.must_be_cured(Code::Forbidden, "waybill mesh members", "a member that is not the owner");
    assert_eq!(alice.json(&["mesh", "queues", "allow", "team", "jobs"])["allowed"], true);
    assert_eq!(alice.json(&["mesh", "queues", "list", "team"])["queues"][0]["queue"], "jobs");
    // Directly, and then the same under the same id through a daemon: one message.
    assert_eq!(bob.json(&["send", "--queue", "jobs", "build", "--id", "q-1"])["duplicate"], false);
    bob.up("team");
    bob.json(&["send", "--queue", "jobs", "build", "--id", "q-1"]);
    bob.json(&["send", "--queue", "jobs", "test", "--id", "q-2"]);
    until("the daemon has sent both", || async {
        let health = bob.json(&["daemon", "status", "--mesh", "team"]);
        health["connected"] == true && health["queue_depth"] == 0
    })
    .await;
    let mut bodies = Vec::new();
    while bodies.len() < 2 {
        let got = client.receive(&url, 1).await;
        assert!(!got.is_empty(), "only {bodies:?}");
        bodies.extend(got.iter().map(|message| message["Body"].as_str().unwrap().to_owned()));
    }
    bodies.sort();
    assert_eq!((bodies, client.receive(&url, 0).await.len()), (vec!["build".to_owned(), "test".to_owned()], 0));

    assert_eq!(alice.json(&["mesh", "revoke", "team", "bob"])["revoked"], true, "as the server's operator");
    let refused = alice.run(&["mesh", "close", "team", "--json"]);
    refused.must_be_cured(Code::InvalidRequest, "Say --yes.", "without --yes");
    assert_eq!(alice.json(&["mesh", "close", "team", "--yes"])["revoked"], 1);
    alice.run(&["send", "--queue", "jobs", "late", "--json"]).must_be(Code::MemberRevoked, "after the end");
}

#[tokio::test]
async fn a_daemon_is_started_once_and_a_killed_one_is_not_taken_for_running() {
    let world = World::start().await;
    let alice = User::new(&world);
    let up = alice.run(&["daemon", "up", "--mesh", "team"]);
    up.must_be_cured(Code::NotFound, "waybill mesh join", "no member");
    alice.json(&["mesh", "create", "team", "--name", "alice"]);
    alice.run(&["mesh", "create", "team", "--name", "alice"]).must_be_cured(
        Code::AlreadyExists,
        "daemon reset",
        "twice",
    );
    alice.up("team");
    alice.run(&["daemon", "up", "--mesh", "team"]).must_be(Code::DaemonRunning, "a second one");
    let pid = alice.json(&["daemon", "ps"])["daemons"][0]["pid"].as_u64().unwrap();
    Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    until("it is gone", || async { !Path::new(&format!("/proc/{pid}")).exists() }).await;
    assert!(alice.folder("team").join("sock").exists(), "a killed daemon leaves its socket");
    assert_eq!(alice.json(&["daemon", "ps"])["daemons"][0]["state"], "stopped");
    alice.json(&["daemon", "up", "--mesh", "team"]);
    alice.connected("team").await;
    let lines = alice.run(&["daemon", "logs", "-n", "5"]).stdout;
    assert!(lines.lines().all(|line| serde_json::from_str::<Json>(line).is_ok()), "{lines}");
    // Settings that cannot work are told by whoever started it.
    alice.json(&["daemon", "down"]);
    std::fs::write(alice.folder("team").join("config.toml"), "[ipc]\nin_flight_max = 0\n").unwrap();
    let refused = alice.run(&["daemon", "up", "--mesh", "team"]);
    assert!(refused.stderr.contains("ipc.in_flight_max"), "{}", refused.stderr);
    refused.must_be(Code::ConfigInvalid, "a setting out of its range");
}

#[tokio::test]
async fn a_member_comes_back_from_its_backup_and_is_taken_away() {
    let world = World::start().await;
    let (alice, elsewhere) = (User::new(&world), User::new(&world));
    alice.json(&["mesh", "create", "team", "--name", "alice"]);
    let phrase = alice.home.path().join("phrase");
    std::fs::write(&phrase, "correct horse battery\n").unwrap();
    let phrase = phrase.to_str().unwrap();
    let files = ["one", "two"].map(|name| alice.home.path().join(name).to_str().unwrap().to_owned());
    alice.json(&["daemon", "backup", &files[0], "--passphrase-file", phrase]);
    alice.up("team");
    alice.connected("team").await;
    alice.json(&["daemon", "backup", &files[1], "--passphrase-file", phrase]);
    alice
        .run(&["daemon", "backup", &files[1], "--passphrase-file", phrase])
        .must_be(Code::AlreadyExists, "over another");
    let third = alice.home.path().join("three");
    let mut by_variable = alice.command(&["daemon", "backup", third.to_str().unwrap()]);
    assert!(by_variable.env("WAYBILL_PASSPHRASE", "correct horse battery").output().unwrap().status.success());
    assert!(third.exists());
    alice.json(&["daemon", "down"]);
    let restored = elsewhere.json(&["daemon", "restore", &files[1], "--passphrase-file", phrase]);
    assert_eq!(restored["slug"], "team");
    elsewhere.up("team");
    elsewhere.connected("team").await;
    let wrong = elsewhere.home.path().join("wrong");
    std::fs::write(&wrong, "another phrase\n").unwrap();
    let refused =
        User::new(&world).run(&["daemon", "restore", &files[0], "--passphrase-file", wrong.to_str().unwrap()]);
    refused.must_be_cured(Code::InvalidRequest, "Check the passphrase", "another passphrase");
    alice.run(&["daemon", "reset"]).must_be_cured(Code::InvalidRequest, "--yes", "without being sure");
    alice.json(&["daemon", "reset", "--yes"]);
    assert!(!alice.folder("team").exists());
}

#[tokio::test]
async fn what_cannot_be_done_is_told_with_its_cure() {
    let world = World::start().await;
    let alice = User::new(&world);
    alice.run(&["send", "bob", "hi"]).must_be_cured(Code::NotFound, "waybill mesh join", "no membership");
    alice.run(&["inbox", "--mesh", "../x"]).must_be(Code::InvalidRequest, "a slug that is a path");
    alice.run(&["mesh", "join", "wbi_nonsense", "--name", "bob"]).must_be(Code::InviteInvalid, "no invite");
    for (args, named) in [
        (&["daemon", "outbox", "requeue", "--id", "x"][..], "--auto"),
        (&["mesh", "create", "Team", "--name", "a"], "lower-case"),
        (&["mesh", "join", "wbi_x"], "--name"),
        (&["daemon", "up", "--ephemeral", "--persistent"], "--persistent"),
        (&["daemon", "up", "--ttl", "2w"], "2h"),
        (&["daemon", "backup", "x"], "--passphrase-file"),
        // Everybody on the host could read it.
        (&["daemon", "backup", "x", "--passphrase", "correct horse battery"], "unexpected argument '--passphrase'"),
        (&["send", "bob"], "<TEXT>"),
    ] {
        let ended = alice.run(args);
        assert_eq!(ended.exit, 2, "{args:?}: {}", ended.stderr);
        assert!(ended.stdout.is_empty() && ended.stderr.contains(named), "{args:?}: {}", ended.stderr);
    }
    alice.json(&["mesh", "create", "team", "--name", "alice"]);
    let in_ci = alice.command(&["daemon", "install-service"]).env("CI", "true").output().unwrap();
    assert_eq!(in_ci.status.code(), Some(i32::from(Code::NotInCi.entry().exit)));
    let up = alice.command(&["daemon", "up"]).env("CI", "true").output().unwrap();
    let told = String::from_utf8(up.stderr).unwrap();
    assert!(told.contains("WAYBILL_INVITE") && told.contains("--persistent"), "{told}");
    let renamed = alice.run(&["daemon", "up", "--name", "other"]);
    renamed.must_be_cured(Code::InvalidRequest, "--rename", "another name");
    alice.run(&["daemon", "status"]).must_be_cured(
        Code::DaemonUnreachable,
        "waybill daemon up --mesh team",
        "none runs",
    );
    alice.run(&["daemon", "recover"]).must_be_cured(Code::NotFound, "The first start", "no outbox yet");
    let none = alice.json(&["daemon", "outbox", "list"]);
    assert_eq!(none["messages"], json!([]), "without a daemon the file is read here");
    alice.run(&["daemon", "outbox", "inspect", "nothing"]).must_be(Code::NotFound, "no such message");
    assert_eq!(alice.json(&["daemon", "recover"])["damaged"], false);
    assert_eq!(alice.json(&["mesh", "list"])["memberships"][0]["name"], "alice");
    assert_eq!(alice.json(&["mesh", "members", "team"])["members"][0]["name"], "alice");
}

#[tokio::test]
async fn a_proxy_that_is_set_for_the_web_is_not_asked_for_the_server() {
    let world = World::start().await;
    let alice = User::new(&world);
    alice.json(&["mesh", "create", "team", "--name", "alice"]);
    let mut members = alice.command(&["mesh", "members", "team", "--json"]);
    for name in ["NO_PROXY", "no_proxy"] {
        members.env_remove(name);
    }
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY"] {
        members.env(name, "http://127.0.0.1:9");
    }
    let output = members.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn an_ephemeral_member_comes_and_goes_with_its_daemon() {
    let world = World::start().await;
    let (alice, runner) = (User::new(&world), User::new(&world));
    alice.json(&["mesh", "create", "team", "--name", "alice"]);
    let invite = alice.json(&["mesh", "invite", "team", "--uses", "2"])["invite"].as_str().unwrap().to_owned();
    let names = || {
        let members = alice.json(&["mesh", "members", "team"]);
        members["members"].as_array().unwrap().iter().map(|member| member["name"].clone()).collect::<Vec<_>>()
    };
    let up =
        ["daemon", "up", "--mesh", "team", "--ephemeral", "--ttl", "1h", "--name", "runner-7", "--invite", &invite];
    let started = runner.json(&up);
    assert_eq!(started["started"], true);
    // Everybody on the host can read what a process was started with.
    let arguments = std::fs::read(format!("/proc/{}/cmdline", started["pid"])).unwrap();
    assert!(!String::from_utf8_lossy(&arguments).contains(&invite));
    assert_eq!(names(), ["alice", "runner-7"]);
    // The outbox of a kept member's folder is that member's.
    let beside = ["daemon", "up", "--mesh", "team", "--ephemeral", "--name", "runner-8", "--invite", &invite];
    alice.run(&beside).must_be_cured(Code::AlreadyExists, "another WAYBILL_HOME", "in the folder of a kept member");
    assert_eq!(names(), ["alice", "runner-7"]);
    assert!(!runner.folder("team").join("keypair.json").exists(), "its keys are in memory alone");
    // Commands find it by its daemon, whatever the folder says.
    assert_eq!(runner.json(&["daemon", "status", "--mesh", "team"])["mesh"], "team");
    let shown = runner.json(&["daemon", "ps"])["daemons"][0].clone();
    assert_eq!((&shown["mesh"], &shown["pid"]), (&json!("team"), &started["pid"]));
    until("it knows alice", || async { runner.run(&["send", "alice", "hi", "--id", "e-1"]).exit == 0 }).await;
    let down = runner.json(&["daemon", "down", "--all"]);
    assert_eq!(down["daemons"][0]["was_running"], true);
    assert_eq!(names(), ["alice"]);
    assert_eq!(runner.json(&["daemon", "ps"])["daemons"], json!([]));
    let status = runner.run(&["daemon", "status", "--mesh", "team"]);
    status.must_be_cured(Code::NotFound, "waybill mesh join", "neither a membership nor a daemon");
    // One whose daemon does not start is gone as well.
    std::fs::write(runner.folder("team").join("outbox.db"), [0x5a; 8192]).unwrap();
    let refused = runner.run(&up);
    assert_eq!(refused.exit, i32::from(Code::OutboxDamaged.entry().exit), "{}", refused.stderr);
    assert_eq!(names(), ["alice"]);
}
