//! What the broker never has: words that only members may know are sent in every way there is, and then every byte that the server
//! has written is searched for them. A mesh that the broker may read goes through the same search, which must find its words.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use serde_json::{Value as Json, json};

use crate::mesh::User;
use crate::world::{Engine, World, program, until};

/// Bytes that must not be found, and what they are.
struct Canary {
    what: String,
    bytes: Vec<u8>,
}

impl Canary {
    fn text(what: &str, text: &str) -> Self {
        Self { what: what.to_owned(), bytes: text.as_bytes().to_vec() }
    }

    /// A secret that its owner keeps as hex.
    fn hex(what: &str, text: &str) -> Self {
        let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
        Self { what: what.to_owned(), bytes: (0..text.len()).step_by(2).map(digit).collect() }
    }

    /// As they are, as hex, and as base64 wherever they begin in what was encoded.
    fn forms(&self) -> Vec<Vec<u8>> {
        let hex: String = self.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut forms = vec![self.bytes.clone(), hex.to_uppercase().into_bytes(), hex.into_bytes()];
        for before in 0..3 {
            let shifted = [vec![0; before], self.bytes.clone()].concat();
            // Characters at the ends also hold bits of what stands beside.
            let whole = (before * 8).div_ceil(6)..shifted.len() * 8 / 6;
            for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
                forms.push(engine.encode(&shifted).as_bytes()[whole.clone()].to_vec());
            }
        }
        forms
    }
}

/// The names of those that are found in any form.
fn found(canaries: &[Canary], bytes: &[u8]) -> BTreeSet<String> {
    let forms: Vec<(&str, Vec<u8>)> = canaries
        .iter()
        .flat_map(|canary| canary.forms().into_iter().map(|form| (canary.what.as_str(), form)))
        .collect();
    // By their first two bytes, so that all of them are one walk over the bytes.
    let mut begins = vec![false; 1 << 16];
    let start = |bytes: &[u8]| (usize::from(bytes[0]) << 8) | usize::from(bytes[1]);
    for (_, form) in &forms {
        begins[start(form)] = true;
    }
    let mut names = BTreeSet::new();
    for at in 0..bytes.len().saturating_sub(1) {
        if begins[start(&bytes[at..])] {
            let here = forms.iter().filter(|(_, form)| bytes[at..].starts_with(form));
            names.extend(here.map(|(what, _)| (*what).to_owned()));
        }
    }
    names
}

/// Every file beneath, one after the other.
fn bytes_below(folder: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            bytes.extend(bytes_below(&path));
        } else if path.is_file() {
            bytes.extend(std::fs::read(&path).unwrap());
        }
    }
    bytes
}

/// Asks a daemon what no command asks.
fn ask(user: &User, method: &str, path: &str, body: &Json) -> Json {
    let mut socket = UnixStream::connect(user.folder("team").join("sock")).unwrap();
    let body = body.to_string();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    serde_json::from_str(body).unwrap()
}

fn private_keys(user: &User, whose: &str) -> Vec<Canary> {
    let file = |name: &str| std::fs::read_to_string(user.folder("team").join(name)).unwrap_or_default();
    let keys: Json = serde_json::from_str(&file("keypair.json")).unwrap();
    let mut canaries: Vec<Canary> = ["ed25519_privkey", "x25519_privkey"]
        .map(|name| Canary::hex(&format!("{whose}'s {name}"), keys[name].as_str().unwrap()))
        .into();
    // The keys before a rotation.
    let archive = file("keypair-archive.json");
    for (number, part) in archive.split("\"x25519_privkey\"").skip(1).enumerate() {
        let key = part.split('"').nth(1).unwrap();
        canaries.push(Canary::hex(&format!("{whose}'s archived key {number}"), key));
    }
    canaries.push(Canary::text(&format!("{whose}'s local token"), file("local_token").trim()));
    canaries
}

fn topic_keys(user: &User) -> Vec<Canary> {
    let inbox = rusqlite::Connection::open(user.folder("team").join("inbox.db")).unwrap();
    let mut keys = inbox.prepare("SELECT topic, epoch, secret FROM directory_epoch_keys").unwrap();
    let rows = keys.query_map([], |row| {
        let (topic, epoch): (String, i64) = (row.get(0)?, row.get(1)?);
        Ok(Canary { what: format!("the key of {topic}, epoch {epoch}"), bytes: row.get(2)? })
    });
    rows.unwrap().map(Result::unwrap).collect()
}

/// Everything that goes over an encrypted mesh and is nobody else's business. Each is in no other's text.
async fn speak(alice: &User, bob: &User) -> Vec<Canary> {
    let words = [
        ("body of a direct message", "canary-dm-5f1c0de9"),
        ("value in meta", "canary-subject-77aa01"),
        ("name in meta", "canary-field-19c4e2"),
        ("body of a post", "canary-post-c03b77d1"),
        ("body of a reply", "canary-reply-8e6620"),
        ("body under an id that is taken", "canary-conflict-3d11"),
        ("body sent without a daemon", "canary-direct-a2b9f4"),
        ("content of a file", "canary-content-60d5ee"),
        ("name of a file", "canary-filename-0b81"),
        ("note beside a file", "canary-note-f95ac3"),
    ];
    let word = |what: &str| words.iter().find(|(known, _)| *known == what).unwrap().1;
    let body = word("body of a direct message");
    let meta = json!({ "subject": word("value in meta"), word("name in meta"): true }).to_string();
    alice.json(&["send", "bob", body, "--meta", &meta, "--id", "visible-id-1", "--mesh", "team"]);
    bob.gets("team", body).await;
    let other = word("body under an id that is taken");
    assert_ne!(alice.run(&["send", "bob", other, "--id", "visible-id-1", "--mesh", "team"]).exit, 0);
    bob.json(&["send", "alice", word("body of a reply"), "--reply-to", "visible-id-1", "--mesh", "team"]);
    alice.gets("team", word("body of a reply")).await;

    alice.json(&["mesh", "topics", "create", "team", "visible-topic"]);
    bob.json(&["mesh", "topics", "subscribe", "team", "visible-topic"]);
    let post = word("body of a post");
    until("a post is taken", || async { bob.run(&["post", "visible-topic", post, "--mesh", "team"]).exit == 0 }).await;
    alice.gets("team", post).await;

    let path = alice.home.path().join(format!("{}.txt", word("name of a file")));
    std::fs::write(&path, word("content of a file").repeat(1_000)).unwrap();
    let note = word("note beside a file");
    ask(alice, "POST", "/v1/file/share", &json!({ "path": path, "to": "bob", "message": note }));
    bob.gets("team", note).await;
    words.into_iter().map(|(what, text)| Canary::text(what, text)).collect()
}

/// What the broker must not have, what it has of a mesh that it may read, and what it needs to know.
struct Said {
    secret: Vec<Canary>,
    readable: Vec<Canary>,
    visible: Vec<Canary>,
}

impl Said {
    /// Whatever is stored has what it needs and nothing more.
    fn search(&self, source: &str, bytes: &[u8]) {
        assert_eq!(found(&self.secret, bytes), BTreeSet::new(), "in the {source}");
        let (readable, visible) = (found(&self.readable, bytes), found(&self.visible, bytes));
        assert_eq!(readable.len(), self.readable.len(), "the search of the {source} finds nothing at all");
        assert_eq!(visible.len(), self.visible.len(), "routing is not in the {source}");
    }

    /// The log has no bodies at all, of no mesh.
    fn search_log(&self, world: &World) {
        let log = world.server.log().into_bytes();
        assert!(log.len() > 1_000);
        assert_eq!(found(&self.secret, &log), BTreeSet::new(), "in the log");
        assert_eq!(found(&self.readable, &log), BTreeSet::new(), "in the log");
    }
}

/// Two members say all there is to say, with and without daemons, before and after a rotation of keys.
async fn all_is_said(world: &World) -> Said {
    let (alice, bob) = (User::new(world), User::new(world));
    alice.json(&["mesh", "create", "team", "--name", "alice"]);
    let invite = alice.json(&["mesh", "invite", "team"])["invite"].as_str().unwrap().to_owned();
    bob.json(&["mesh", "join", &invite, "--name", "bob"]);
    for user in [&alice, &bob] {
        user.up("team");
        user.connected("team").await;
    }
    let mut secret = speak(&alice, &bob).await;
    let keys_before = private_keys(&bob, "bob");
    bob.json(&["daemon", "rotate-keypair", "--mesh", "team"]);
    secret.extend(keys_before);
    secret.extend(private_keys(&alice, "alice"));
    secret.extend(private_keys(&bob, "bob now"));
    let topics = topic_keys(&bob);
    assert!(!topics.is_empty(), "no key of a topic is known");
    secret.extend(topics);
    alice.json(&["daemon", "down", "--mesh", "team"]);
    alice.json(&["send", "bob", "canary-direct-a2b9f4", "--mesh", "team"]);
    bob.gets("team", "canary-direct-a2b9f4").await;

    // The control: a mesh whose messages the broker may read.
    let readable = vec![Canary::text("a body that the broker may read", "control-body-4470fe")];
    alice.json(&["mesh", "create", "open", "--name", "alice", "--plaintext"]);
    alice.json(&["send", "alice", "control-body-4470fe", "--mesh", "open"]);
    let visible = vec![Canary::text("a topic", "visible-topic"), Canary::text("an id", "visible-id-1")];
    Said { secret, readable, visible }
}

#[tokio::test]
async fn nothing_of_a_body_a_subject_or_a_key_is_in_the_brokers_database_log_or_backup() {
    let mut world = World::with(Engine::Sqlite, "", &["--log", "debug"]).await;
    let said = all_is_said(&world).await;
    let copies = tempfile::tempdir().unwrap();
    let (backup, data) = (copies.path().join("backup"), world.server.data_dir.clone());
    let taken = program(&["backup", backup.to_str().unwrap(), "--data", data.to_str().unwrap(), "--json"]);
    assert_eq!(taken.exit, 0, "{}", taken.stderr);
    // With its log as it was written, and once more when all of it is in the database.
    world.server.kill9().unwrap();
    said.search("killed database", &bytes_below(&data));
    world.server.restart().unwrap();
    world.server.term().unwrap();
    said.search("database", &bytes_below(&data));
    said.search("backup", &bytes_below(&backup));
    said.search_log(&world);
}

#[tokio::test]
async fn nothing_of_a_body_a_subject_or_a_key_is_in_the_rows_of_postgres() {
    let mut world = World::with(Engine::Postgres, "", &["--log", "debug"]).await;
    let said = all_is_said(&world).await;
    said.search("rows", &all_rows(&world).await);
    world.server.term().unwrap();
    assert_eq!(found(&said.secret, &bytes_below(&world.server.data_dir)), BTreeSet::new(), "in the data folder");
    said.search_log(&world);
}

/// Of every table, as the superuser reads them; bytes are hex there.
async fn all_rows(world: &World) -> Vec<u8> {
    let client = world.database.as_ref().unwrap().connect().await.unwrap();
    let tables = client.query("SELECT tablename::text FROM pg_tables WHERE schemaname = 'public'", &[]).await.unwrap();
    let mut bytes = Vec::new();
    for table in &tables {
        let sql = format!("SELECT t::text FROM \"{}\" t", table.get::<_, String>(0));
        for row in client.query(&sql, &[]).await.unwrap() {
            bytes.extend(row.get::<_, String>(0).into_bytes());
            bytes.push(b'\n');
        }
    }
    bytes
}

#[test]
fn a_canary_is_found_in_each_of_its_forms() {
    let canary = [Canary::text("it", "canary-\u{fc}ber-1")];
    let raw = canary[0].bytes.clone();
    for before in 0..4 {
        let around = [vec![b'#'; before], raw.clone(), b"~?~?".to_vec()].concat();
        let hex: String = around.iter().map(|byte| format!("{byte:02x}")).collect();
        for text in [
            around.clone(),
            hex.to_uppercase().into_bytes(),
            hex.into_bytes(),
            STANDARD_NO_PAD.encode(&around).into_bytes(),
            URL_SAFE_NO_PAD.encode(&around).into_bytes(),
        ] {
            let text = [b"before".to_vec(), text, b"after".to_vec()].concat();
            assert_eq!(found(&canary, &text).len(), 1, "{}", String::from_utf8_lossy(&text));
        }
    }
    assert!(found(&canary, b"canary-uber-1").is_empty());
}
