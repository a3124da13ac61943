//! A start that cannot succeed says why and what to do, and leaves everything as it was.

use std::net::TcpListener;

use serde_json::json;
use tempfile::TempDir;
use waybill_access::Key;
use waybill_kernel::entropy::OsEntropy;
use waybill_kernel::{Clock, Code, Mode, Result};
use waybill_store::{Ctx, Tx, Work};
use waybill_testkit::server::{Options, Server};

use crate::world::{Ended, Engine, World, config, program};

/// Looked for in everything the program says.
const PASSWORD: &str = "hunter2-canary";

struct Start {
    folder: TempDir,
}

impl Start {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn data(&self) -> String {
        self.folder.path().join("data").to_str().unwrap().to_owned()
    }

    fn serve(&self, args: &[&str]) -> Ended {
        let data = self.data();
        program(&[&["serve", "--data", &data, "--sqs", "127.0.0.1:0"], args].concat())
    }
}

#[tokio::test]
async fn a_busy_port_is_named_and_costs_no_admin_key() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let start = Start::new();
    let ended = start.serve(&["--http", &address]);
    let cure = |flag: &str| format!("Stop the program that holds it, or choose another with {flag}.");
    ended.must_be_cured(Code::AddressUnusable, &cure("--http"), "a busy port");
    assert!(ended.stderr.contains(&address), "{}", ended.stderr);
    let ended = program(&["serve", "--data", &start.data(), "--http", "127.0.0.1:0", "--sqs", &address]);
    ended.must_be_cured(Code::AddressUnusable, &cure("--sqs"), "a busy port of SQS clients");
    assert!(ended.stderr.contains(&address), "{}", ended.stderr);
    assert!(!std::path::Path::new(&start.data()).join("admin.key").exists(), "a key that nobody was told of");

    let mut world = World::start().await;
    let key = world.server.admin_key.clone();
    assert!(world.server.term().unwrap().success());
    let data = world.server.data_dir.to_str().unwrap().to_owned();
    let ended = program(&["serve", "--data", &data, "--http", &address]);
    ended.must_be_cured(Code::AddressUnusable, &cure("--http"), "a busy port, later");
    world.server.restart().unwrap();
    assert_eq!(world.server.admin_key, key);
    assert_eq!(world.get(&key, "/v1/tasks").await.status, 200);

    let ended = start.serve(&["--http", "192.0.2.1:7700"]);
    ended.must_be_cured(Code::AddressUnusable, &cure("--http"), "an address of another machine");
}

#[tokio::test]
async fn a_data_folder_that_cannot_be_used_is_named() {
    let world = World::start().await;
    let data = world.server.data_dir.to_str().unwrap();
    let ended = program(&["serve", "--data", data, "--http", "127.0.0.1:0", "--sqs", "127.0.0.1:0"]);
    ended.must_be(Code::DataFolderLocked, "a folder in use");
    assert!(ended.stderr.contains(&format!("process {}", world.server.pid)), "{}", ended.stderr);
    assert_eq!(world.get(&world.server.admin_key, "/v1/tasks").await.status, 200, "the first is unharmed");

    // Root may write everywhere, but not below a file and not among the kernel's own.
    let file = tempfile::NamedTempFile::new().unwrap();
    let below = file.path().join("data");
    for path in [below.to_str().unwrap(), "/proc/waybill"] {
        let ended = program(&["serve", "--data", path, "--http", "127.0.0.1:0", "--sqs", "127.0.0.1:0"]);
        ended.must_be(Code::DataFolderUnusable, path);
        assert!(ended.stderr.contains(path), "{}", ended.stderr);
    }

    let start = Start::new();
    std::fs::create_dir(start.data()).unwrap();
    let database = std::path::Path::new(&start.data()).join("waybill.db");
    std::fs::write(&database, "no database at all".repeat(1000)).unwrap();
    start.serve(&["--http", "127.0.0.1:0"]).must_be(Code::DatabaseUnusable, "a file that is no database");
    assert!(std::fs::read(&database).unwrap().starts_with(b"no database"), "it was written over");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_a_newer_version_is_left_alone() {
    let mut world = World::start().await;
    assert!(world.server.term().unwrap().success());
    let store = world.open_store(Clock::system()).await;
    store.system().run(Newer).await.unwrap();
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();
    let data = world.server.data_dir.to_str().unwrap();
    let ended = program(&["serve", "--data", data, "--http", "127.0.0.1:0", "--sqs", "127.0.0.1:0"]);
    ended.must_be(Code::SchemaTooNew, "SQLite");
    assert!(ended.stderr.contains("9999"), "{}", ended.stderr);

    let world = World::with(Engine::Postgres, "", &[]).await;
    let database = world.database.as_ref().unwrap();
    database.connect().await.unwrap().batch_execute(Newer::INSERT).await.unwrap();
    let start = Start::new();
    start.serve(&["--http", "127.0.0.1:0", "--store", &database.url]).must_be(Code::SchemaTooNew, "PostgreSQL");
    let data = start.data();
    let key = program(&["key", "list", "--data", &data, "--store", &database.url]);
    key.must_be(Code::SchemaTooNew, "a command that opens the database itself");
}

/// Another server on the same database has made something that this one cannot serve.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_server_ends_when_more_is_needed_than_it_can() {
    const NOTE: &str = "INSERT INTO required_capabilities (tenant, name) SELECT t.tenant, 'teleport' FROM tenants t";
    let mut world = World::with(Engine::Postgres, "[background]\nmeasure_interval_s = 1\n", &[]).await;
    let url = world.database.as_ref().unwrap().url.clone();
    world.database.as_ref().unwrap().connect().await.unwrap().batch_execute(NOTE).await.unwrap();
    let status = world.server.ended().unwrap();
    let log = world.server.log();
    assert_eq!(status.code(), Some(77), "{log}");
    assert!(log.contains("[schema_too_new]") && log.contains("teleport"), "{log}");
    let data = world.server.data_dir.to_str().unwrap();
    let again = program(&["serve", "--data", data, "--http", "127.0.0.1:0", "--sqs", "127.0.0.1:0", "--store", &url]);
    assert!(again.exit == 77 && again.stderr.contains("teleport"), "{} {}", again.exit, again.stderr);
}

/// What a later version would have written.
struct Newer;

impl Newer {
    const INSERT: &str = "INSERT INTO refinery_schema_history (version, name, applied_on, checksum) \
                          VALUES (9999, 'later', '2030-01-01T00:00:00Z', '1')";
}

impl Work for Newer {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        tx.execute(Newer::INSERT, &[]).await.map(drop)
    }
}

#[test]
fn an_unreachable_postgresql_is_told_without_its_password() {
    const SETTING: &str = Code::ConfigInvalid.entry().cure;
    let start = Start::new();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let rows = [
        (
            format!("postgres://waybill:{PASSWORD}@{free}/waybill"),
            Code::StoreUnavailable,
            "Start PostgreSQL, or correct",
        ),
        (
            format!("postgres://waybill:{PASSWORD}@no-such-host.invalid/waybill"),
            Code::StoreUnavailable,
            "Start PostgreSQL, or correct the address in --store",
        ),
        (format!("postgres://waybill:{PASSWORD}@{free}/waybill?no_such_setting=1"), Code::ConfigInvalid, SETTING),
        (format!("postgres://waybill:{PASSWORD}@127.0.0.1:port/waybill"), Code::ConfigInvalid, SETTING),
        (format!("mysql://waybill:{PASSWORD}@127.0.0.1/waybill"), Code::ConfigInvalid, SETTING),
    ];
    for (store, code, cure) in rows {
        for command in
            [vec!["serve", "--http", "127.0.0.1:0", "--sqs", "127.0.0.1:0", "--log", "trace"], vec!["tenant", "list"]]
        {
            let data = start.data();
            let ended = program(&[command.as_slice(), &["--data", &data, "--store", &store]].concat());
            ended.must_be_cured(code, cure, &store);
            let said = format!("{}{}", ended.stdout, ended.stderr);
            assert!(!said.contains(PASSWORD), "{command:?} told the password: {said}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_postgresql_refuses_is_told_with_what_to_change() {
    let world = World::with(Engine::Postgres, "", &[]).await;
    let url = &world.database.as_ref().unwrap().url;
    let (server, _) = url.rsplit_once('/').unwrap();
    let (scheme, rest) = server.split_once("://").unwrap();
    let (_, host) = rest.rsplit_once('@').unwrap();
    let start = Start::new();
    for (store, cure) in [
        (format!("{server}/no_such_database"), "Make the database with `createdb`"),
        (format!("{scheme}://no_such_user@{host}/waybill"), "Correct the user or the password in --store"),
    ] {
        let ended = start.serve(&["--http", "127.0.0.1:0", "--store", &store]);
        ended.must_be_cured(Code::StoreUnavailable, cure, &store);
    }
}

#[test]
fn a_setting_that_is_not_known_or_not_right_is_named() {
    let start = Start::new();
    let store = format!("store = \"postgres://waybill:{PASSWORD}@127.0.0.1/waybill\"");
    let unclosed = store.trim_end_matches('"').to_owned();
    let wrong_type = format!("http = \"127.0.0.1:0\"\n{}", store.replace("store", "sqs"));
    let rows = [
        ("colour = \"red\"\n".to_owned(), "colour"),
        ("[doors]\nbody_bytes = 1\n".to_owned(), "body_bytes"),
        ("[doors.mcp]\nallowed_host = []\n".to_owned(), "allowed_host"),
        ("[tasks]\npayload_max = 1\n".to_owned(), "payload_max"),
        ("[access]\nrecheck = 1\n".to_owned(), "recheck"),
        ("[sqlite]\nreaders = \"many\"\n".to_owned(), "line 2"),
        ("[postgres]\nwait_poll_ms = 0\n".to_owned(), "postgres.wait_poll_ms is 0; it must be at least 10."),
        ("http = \"nowhere\"\n".to_owned(), "line 1"),
        ("this is no TOML".to_owned(), "line 1"),
        (unclosed, "line 1"),
        (wrong_type, "line 2"),
    ];
    for (text, named) in rows {
        let file = config(&text);
        let path = file.path().to_str().unwrap();
        let ended = start.serve(&["--http", "127.0.0.1:0", "--config", path]);
        let cure =
            if named.starts_with("postgres.") { "Correct the setting" } else { "Correct that line; docs/settings.md" };
        ended.must_be_cured(Code::ConfigInvalid, cure, &text);
        assert!(ended.stderr.contains(path) && ended.stderr.contains(named), "{text}: {}", ended.stderr);
        assert!(!ended.stderr.contains(PASSWORD), "told the password: {}", ended.stderr);
    }
    let ended = start.serve(&["--http", "127.0.0.1:0", "--config", "/no/such/file.toml"]);
    ended.must_be_cured(Code::ConfigInvalid, "Name a file that you can read with --config", "no file");
    assert!(ended.stderr.contains("/no/such/file.toml"), "{}", ended.stderr);
    let ended = start.serve(&["--http", "127.0.0.1:0", "--log", "a=b=c"]);
    ended.must_be(Code::ConfigInvalid, "a filter that is none");
}

/// The command that the server says makes a key, as it has printed it.
fn printed(server: &Server) -> String {
    let log = server.log();
    let line = log.lines().find(|line| line.contains("waybill key create"));
    line.unwrap_or_else(|| panic!("it says no command: {log}")).trim().to_owned()
}

/// The key that a printed command makes.
fn pasted(command: &str) -> String {
    let words: Vec<_> = command.split(' ').collect();
    let ended = program(&words[1..]);
    assert_eq!(ended.exit, 0, "{command}: {}", ended.stderr);
    ended.stdout.trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_printed_to_paste_reaches_the_server_that_printed_it() {
    let world = World::start().await;
    let data = world.server.data_dir.to_str().unwrap();
    let command = printed(&world.server);
    assert_eq!(command, format!("waybill key create --data {data} --principal agent:alice"));
    assert_eq!(world.get(&pasted(&command), "/v1/tasks").await.status, 200);
    let aws = format!("aws --endpoint-url {} --region us-east-1 sqs ", world.server.sqs_url);
    assert!(world.server.log().contains(&aws), "{}", world.server.log());

    let home = tempfile::tempdir().unwrap();
    let usual = Options {
        data: Some(home.path().join(".local/share/waybill")),
        env: vec![("HOME".to_owned(), home.path().to_str().unwrap().to_owned())],
        ..Options::default()
    };
    let server = Server::start(usual).unwrap();
    assert_eq!(printed(&server), "waybill key create --principal agent:alice");

    // A second node, whose folder has no key and whose server would ask for one.
    let world = World::with(Engine::Postgres, "", &[]).await;
    let url = world.database.as_ref().unwrap().url.clone();
    let second = Server::start(Options { store: Some(url.clone()), ..Options::default() }).unwrap();
    assert_eq!(second.admin_key, "");
    let command = printed(&second);
    assert_eq!(
        command,
        "waybill key create --data \"$(mktemp -d)\" --store <the same> --principal human:me --role admin"
    );
    let fresh = tempfile::tempdir().unwrap();
    let command = command.replace("\"$(mktemp -d)\"", fresh.path().to_str().unwrap()).replace("<the same>", &url);
    let key = pasted(&command);
    let answer = world.http.get(format!("{}/admin/keys", second.base_url)).bearer_auth(key).send().await.unwrap();
    assert_eq!(answer.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_start_that_was_cut_off_leaves_its_key() {
    let mut world = World::start().await;
    let key = world.server.admin_key.clone();
    let [kept, new] = ["admin.key", "admin.key.new"].map(|name| world.server.data_dir.join(name));
    assert!(!new.exists());

    // As after the commit, before the key has its name.
    assert!(world.server.term().unwrap().success());
    std::fs::rename(&kept, &new).unwrap();
    world.server.restart().unwrap();
    assert_eq!((world.server.admin_key.as_str(), new.exists()), (key.as_str(), false));
    assert_eq!(world.get(&key, "/v1/tasks").await.status, 200);

    // As before the commit: keys that the database has not, or has for somebody else, and half a key.
    world.admin_post("/admin/tenants", &json!({ "name": "acme" })).await;
    let elsewhere = world.key(json!({ "principal": "agent:bob", "tenant": "acme" })).await;
    let unknown = Key::generate(&OsEntropy).reveal().expose().to_owned();
    for foreign in [unknown.as_str(), &elsewhere, &key[..20]] {
        assert!(world.server.term().unwrap().success());
        std::fs::write(&new, foreign).unwrap();
        world.server.restart().unwrap();
        assert_eq!((world.server.admin_key.as_str(), new.exists()), (key.as_str(), false), "{foreign}");
        assert_eq!(world.get(&key, "/v1/tasks").await.status, 200);
    }
}

#[test]
fn a_first_start_that_cannot_write_its_key_makes_no_tenant() {
    let start = Start::new();
    let data = std::path::PathBuf::from(start.data());
    let blocked = data.join("admin.key.new");
    std::fs::create_dir_all(&blocked).unwrap();
    let ended = start.serve(&["--http", "127.0.0.1:0"]);
    ended.must_be(Code::DataFolderUnusable, "no place for the key");
    assert!(ended.stderr.contains(blocked.to_str().unwrap()), "{}", ended.stderr);

    std::fs::remove_dir(&blocked).unwrap();
    let server = Server::start(Options { data: Some(data), ..Options::default() }).unwrap();
    assert!(Key::parse(&server.admin_key).is_some(), "the tenant was made, and its key is lost: {}", server.log());
}
