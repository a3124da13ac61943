//! What the program keeps to itself: a folder that nobody else may write, the server's own key, and what it says where others
//! could listen.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value as Json, json};
use waybill_access::ServerKey;
use waybill_kernel::Code;
use waybill_testkit::server::{self, Options, Server};

use crate::world::{Ended, Engine, Reply, World, program, until};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn server_key(data: &Path) -> ServerKey {
    fs::read_to_string(data.join("server.key")).unwrap().parse().unwrap()
}

/// A check of the doctor's, the worst of that name.
fn check(data: &Path, name: &str, args: &[&str]) -> Json {
    let ended = program(&[&["doctor", "--quick", "--json", "--data", text(data)], args].concat());
    let checks = ended.json()["checks"].as_array().unwrap().clone();
    let badness =
        |check: &Json| ["ok", "skipped", "warning", "failed"].iter().position(|word| check["verdict"] == *word);
    checks.into_iter().filter(|check| check["check"] == name).max_by_key(badness).unwrap()
}

fn serve(data: &Path) -> Ended {
    program(&["serve", "--http", "127.0.0.1:0", "--sqs", "127.0.0.1:0", "--data", text(data)])
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_may_write_or_have_linked_is_refused_and_doctor_says_the_same() {
    let mut world = World::start().await;
    assert!(world.server.term().unwrap().success());
    let data = world.server.data_dir.clone();
    let refused = |path: &Path, cure: &str| {
        let ended = serve(&data);
        ended.must_be(Code::DataFolderUnusable, text(path));
        let cure = cure.replace("{}", text(path));
        assert!(ended.stderr.contains(text(path)) && ended.stderr.contains(&cure), "{cure}: {}", ended.stderr);
        let found = check(&data, "ownership", &[]);
        assert_eq!(found["verdict"], "failed", "{found}");
        assert!(found["cure"].as_str().unwrap().contains(&cure), "{found}");
    };
    assert_eq!(check(&data, "ownership", &[])["verdict"], "ok");
    for (path, bad, good) in [
        (data.clone(), 0o770, 0o700),
        (data.join("waybill.db"), 0o660, 0o600),
        (data.join("admin.key"), 0o602, 0o600),
        (data.join("server.key"), 0o620, 0o600),
    ] {
        set_mode(&path, bad);
        refused(&path, "chmod go-w {}");
        set_mode(&path, good);
    }
    for name in ["waybill.db", "waybill.mark", "admin.key", "server.key", "instance.id", "waybill.lock"] {
        let (path, elsewhere) = (data.join(name), data.parent().unwrap().join(name));
        fs::rename(&path, &elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        let before = fs::read(&elsewhere).unwrap();
        refused(&path, "readlink -f {}");
        assert!(fs::read(&elsewhere).unwrap() == before, "{name} was written through the link");
        fs::rename(&elsewhere, &path).unwrap();
    }
    let above = data.parent().unwrap().canonicalize().unwrap();
    set_mode(&above, 0o777);
    refused(&above, "chmod o-w {}");
    set_mode(&above, 0o1777);
    world.server.restart().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_start_makes_the_servers_key_and_every_key_is_under_it() {
    let mut world = World::start().await;
    let alice = world.key(json!({ "principal": "agent:alice" })).await;
    let data = world.server.data_dir.clone();
    let first = server_key(&data);
    world.server.restart().unwrap();
    assert_eq!(server_key(&data), first);
    assert!(world.server.term().unwrap().success());
    let made = program(&["key", "create", "--data", text(&data), "--principal", "agent:bob"]);
    assert_eq!(made.exit, 0, "{}", made.stderr);
    let under = |id: &str| {
        let database = rusqlite::Connection::open(data.join("waybill.db")).unwrap();
        let count = "SELECT count(*) FROM api_keys WHERE length(digest) = 32 AND digest_under = ?1";
        database.query_row(count, [id], |row| row.get::<_, i64>(0)).unwrap()
    };
    assert_eq!(under(first.id()), 3, "the admin's, alice's and bob's");
    assert_eq!(check(&data, "server key", &[])["verdict"], "ok");

    // Another one: nobody is shut out, and it is told.
    let rotated = program(&["server-key", "rotate", "--data", text(&data)]);
    assert_eq!((rotated.exit, rotated.stdout.trim()), (0, server_key(&data).id()), "{}", rotated.stderr);
    assert_ne!(server_key(&data), first);
    world.server.restart().unwrap();
    program(&["server-key", "rotate", "--data", text(&data)]).must_be(Code::DataFolderLocked, "beside its server");
    assert_eq!(world.get(&alice, "/v1/tasks").await.status, 200);
    assert!(!world.server.log().contains("server key is another one"), "{}", world.server.log());
    fs::remove_file(data.join("server.key")).unwrap();
    assert_eq!(check(&data, "server key", &[])["verdict"], "warning");
    world.server.restart().unwrap();
    assert!(world.server.log().contains("server key is another one"), "{}", world.server.log());
    assert_eq!(world.get(&alice, "/v1/tasks").await.status, 200);
    assert!(world.server.term().unwrap().success());
    assert_eq!(under(server_key(&data).id()), 1, "alice's, at her first use");
    assert_eq!(check(&data, "server key", &[])["verdict"], "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_names_the_servers_key_and_has_it_only_when_told() {
    let world = World::start().await;
    let alice = world.key(json!({ "principal": "agent:alice" })).await;
    let (home, data) = (tempfile::tempdir().unwrap(), world.server.data_dir.clone());
    let id = server_key(&data).id().to_owned();
    for (with_keys, flags) in [(false, &[][..]), (true, &["--with-keys"][..])] {
        let backup = home.path().join(format!("backup-{with_keys}"));
        let target = home.path().join(format!("data-{with_keys}"));
        let taken = program(&[&["backup", text(&backup), "--data", text(&data), "--json"], flags].concat());
        assert_eq!((taken.exit, &taken.json()["server_key_id"]), (0, &json!(id)), "{}", taken.stderr);
        assert_eq!(backup.join("server.key").exists(), with_keys);
        let restored = program(&["restore", text(&backup), "--data", text(&target)]);
        assert_eq!(restored.exit, 0, "{}", restored.stderr);
        assert_eq!(restored.stderr.contains(&format!("({id}) did not travel")), !with_keys, "{}", restored.stderr);
        let server = Server::start(Options { data: Some(target.clone()), ..Options::default() }).unwrap();
        assert_eq!(server_key(&target).id() == id, with_keys);
        let mode = fs::metadata(target.join("server.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let tasks = Reply::of(world.http.get(format!("{}/v1/tasks", server.base_url)).bearer_auth(&alice)).await;
        assert_eq!(tasks.status, 200, "{}", tasks.text);
    }
    // Put there by hand before the restore, it stays.
    let target = home.path().join("by-hand");
    fs::create_dir(&target).unwrap();
    fs::copy(data.join("server.key"), target.join("server.key")).unwrap();
    let restored = program(&["restore", text(&home.path().join("backup-false")), "--data", text(&target)]);
    assert_eq!(restored.exit, 0, "{}", restored.stderr);
    assert!(!restored.stderr.contains("did not travel") && server_key(&target).id() == id, "{}", restored.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_share_a_servers_key_and_one_with_another_is_told() {
    let world = World::with(Engine::Postgres, "", &[]).await;
    let url = world.database.as_ref().unwrap().url.clone();
    let (admin, shared) = (&world.server.admin_key, world.server.data_dir.join("server.key"));
    let first = server_key(&world.server.data_dir);
    let node = |args: &[&str]| {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Server::start(Options { store: Some(url.clone()), args, ..Options::default() }).unwrap()
    };
    let let_in = async |node: &Server| {
        let tasks = Reply::of(world.http.get(format!("{}/v1/tasks", node.base_url)).bearer_auth(admin)).await;
        assert_eq!(tasks.status, 200, "{}", tasks.text);
    };
    let sharing = node(&["--server-key-file", text(&shared)]);
    let_in(&sharing).await;
    assert!(!sharing.log().contains("server key"), "{}", sharing.log());
    assert!(!sharing.data_dir.join("server.key").exists());

    let mut other = node(&[]);
    let own = server_key(&other.data_dir);
    for part in [own.id(), first.id(), "--server-key-file", "waybill server-key adopt"] {
        assert!(other.log().contains(part), "{part} is not in: {}", other.log());
    }
    let_in(&other).await;
    let_in(&world.server).await;
    assert!(other.term().unwrap().success());
    assert_eq!(check(&other.data_dir, "server key", &["--store", &url])["verdict"], "warning");
    let adopted = program(&["server-key", "adopt", "--data", text(&other.data_dir), "--store", &url]);
    assert_eq!((adopted.exit, adopted.stdout.trim()), (0, own.id()), "{}", adopted.stderr);
    assert_eq!(check(&other.data_dir, "server key", &["--store", &url])["verdict"], "ok");
    assert_eq!(check(&world.server.data_dir, "server key", &["--store", &url])["verdict"], "warning");
}

/// What a server says on stderr that listens there, from its start to its end.
async fn said(http: &str, args: &[&str]) -> String {
    let data = tempfile::tempdir().unwrap();
    let mut command = Command::new(server::binary());
    command.args(["serve", "--http", http, "--sqs", "127.0.0.1:0", "--data", text(data.path())]).args(args);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    until("it listens", || async { data.path().join("server.json").exists() }).await;
    // It has said what it had to say by then, or says it before it ends.
    assert!(Command::new("kill").arg("-TERM").arg(child.id().to_string()).status().unwrap().success());
    String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_listens_in_the_open_is_told_unless_a_proxy_is_trusted() {
    const TOLD: &str = "speaks no TLS";
    let told = said("0.0.0.0:0", &[]).await;
    assert!(told.contains(TOLD) && told.contains("reverse proxy") && told.contains("trusted_proxy"), "{told}");
    assert!(told.contains("WARN"), "in the log, too: {told}");
    for (http, args) in [("0.0.0.0:0", &["--trusted-proxy"][..]), ("127.0.0.1:0", &[])] {
        let told = said(http, args).await;
        assert!(!told.contains(TOLD), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_sees_every_tenant_is_told_of_with_the_statements_that_mend_it() {
    let world = World::with(Engine::Postgres, "", &[]).await;
    let (database, data) = (world.database.as_ref().unwrap(), &world.server.data_dir);
    let superuser = check(data, "login role", &["--store", &database.url]);
    assert_eq!(superuser["verdict"], "warning", "bound by no policy: {superuser}");

    let (client, login) = (database.connect().await.unwrap(), format!("inherits_{}", database.name));
    let make = format!("DROP ROLE IF EXISTS {login}; CREATE ROLE {login} LOGIN; GRANT waybill_system TO {login}");
    client.batch_execute(&make).await.unwrap();
    let url = database.url_as(&login);
    let inherits = check(data, "login role", &["--store", &url]);
    assert_eq!(inherits["verdict"], "failed", "{inherits}");
    assert!(inherits["found"].as_str().unwrap().contains(&format!("{login} inherits waybill_system")), "{inherits}");
    let cure = inherits["cure"].as_str().unwrap();
    assert!(cure.contains("NOINHERIT") && cure.contains("REVOKE"), "{cure}");
    client.batch_execute(cure).await.unwrap();
    assert_eq!(check(data, "login role", &["--store", &url])["verdict"], "ok");
}
