//! Files of projects on the server's own disk, where the operator lets it touch them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value as Json, json};
use waybill_kernel::{Caller, Code};
use waybill_mail::Settings;
use waybill_testkit::stores::TestStore;

use crate::support::*;

/// Folders of projects are made in here.
const ROOT: &str = env!("CARGO_TARGET_TMPDIR");

/// In there, and closed.
const OWN: &str = "the-servers-own";

fn rooted() -> Settings {
    let (project_roots, closed) = (vec![PathBuf::from(ROOT)], vec![Path::new(ROOT).join(OWN)]);
    Settings { project_roots, closed, allow_ephemeral_projects: true, ..Settings::default() }
}

waybill_testkit::both! {
    super::rooted() =>
    rule_18_files_that_are_worked_on_keep_a_reservation,
    files_are_attached_by_their_paths,
    what_the_server_keeps_for_itself_is_closed,
    a_call_that_is_repeated_under_its_key_needs_no_file_any_more,
    images_become_smaller_unless_they_are_to_stay,
    pictures_of_the_text_come_along,
    pictures_that_cannot_be_had_stay_text,
    rule_21_the_guard_is_put_into_a_repository_and_taken_out_again,
}

struct Tree {
    temp: tempfile::TempDir,
}

impl Tree {
    fn new() -> Self {
        let temp = tempfile::tempdir_in(ROOT).unwrap();
        fs::create_dir_all(temp.path().join("src")).unwrap();
        Self { temp }
    }

    fn key(&self) -> String {
        self.temp.path().to_str().unwrap().to_owned()
    }

    fn at(&self, path: &str) -> PathBuf {
        self.temp.path().join(path)
    }

    /// Two agents who let each other write.
    async fn people(&self, on: &TestStore) -> (Caller, Caller) {
        let (alice, bob) = (person(on, "alice"), person(on, "bob"));
        for (caller, name) in [(&alice, "GreenCastle"), (&bob, "BlueLake")] {
            agent_in(on, caller, &self.key(), name).await;
            let input = json!({ "project_key": self.key(), "agent_name": name, "policy": "open" });
            ok(on, caller, "set_contact_policy", input).await;
        }
        (alice, bob)
    }

    fn letter(&self, further: Json) -> Json {
        let base = json!({
            "project_key": self.key(), "sender_name": "GreenCastle", "to": ["BlueLake"], "subject": "x", "body_md": "y",
        });
        with(base, further)
    }
}

/// The store's clock is the test's own, and so are the times of its files.
fn touch(on: &TestStore, path: &Path, ago: Duration) {
    let now = Duration::from_micros(on.store.now().micros().unsigned_abs());
    fs::File::options().write(true).open(path).unwrap().set_modified(UNIX_EPOCH + now - ago).unwrap();
}

async fn rule_18_files_that_are_worked_on_keep_a_reservation(on: TestStore) {
    let tree = Tree::new();
    let (alice, bob) = tree.people(&on).await;
    fs::write(tree.at("src/a.rs"), "one").unwrap();
    let reserve = json!({
        "project_key": tree.key(), "agent_name": "BlueLake", "paths": ["src/*.rs"], "ttl_seconds": 100_000,
    });
    let id = number(&ok(&on, &bob, "file_reservation_paths", reserve).await["granted"][0], "id");
    pass(&on, 3_600);
    let force = json!({ "project_key": tree.key(), "agent_name": "GreenCastle", "file_reservation_id": id });
    touch(&on, &tree.at("src/a.rs"), Duration::from_secs(600));
    let error = refused(&on, &alice, "force_release_file_reservation", force.clone()).await;
    assert_eq!(error.code(), Code::ReservationActive);
    assert!(error.message().contains("src/a.rs was changed at"), "{}", error.message());
    // A file that it does not hold, and one that leads elsewhere, say nothing.
    fs::write(tree.at("README.md"), "new").unwrap();
    touch(&on, &tree.at("src/a.rs"), Duration::from_secs(1_000));
    std::os::unix::fs::symlink("/proc/self/status", tree.at("src/b.rs")).unwrap();
    let released = ok(&on, &alice, "force_release_file_reservation", force).await;
    assert_eq!(released["released"], true);
    let reasons = released["reasons"].to_string();
    assert!(reasons.contains("None of its files was changed or committed lately"), "{reasons}");
}

async fn files_are_attached_by_their_paths(on: TestStore) {
    let tree = Tree::new();
    let (alice, bob) = tree.people(&on).await;
    fs::write(tree.at("src/notes.md"), "hello").unwrap();
    std::os::unix::fs::symlink("/etc/hostname", tree.at("src/link")).unwrap();
    let inline = json!([{ "name": "a.bin", "content_base64": "AP8A" }]);
    let input = tree.letter(json!({ "attachment_paths": ["src/notes.md"], "attachments": inline }));
    let sent = ok(&on, &alice, "send_message", input).await;
    let files = &sent["attachments"];
    assert_eq!((&files[0]["name"], &files[1]["name"]), (&json!("a.bin"), &json!("notes.md")));
    assert_eq!((&files[1]["bytes"], &files[1]["media_type"]), (&json!(5), &json!("text/markdown")));
    let id = number(&sent["deliveries"][0]["payload"], "id");
    let get = json!({ "project_key": tree.key(), "agent_name": "BlueLake", "message_id": id, "position": 1 });
    assert_eq!(ok(&on, &bob, "get_attachment", get).await["content_base64"], "aGVsbG8=");
    let absolute = tree.at("src/notes.md").display().to_string();
    let reply = json!({
        "project_key": tree.key(), "sender_name": "BlueLake", "message_id": id, "body_md": "z", "attachment_paths": [absolute],
    });
    assert_eq!(ok(&on, &bob, "reply_message", reply).await["attachments"][0]["name"], "notes.md");
    // The name is that of the file, however its path is written, and one that people can see.
    let input = tree.letter(json!({ "attachment_paths": ["src/notes.md/", "src/notes.md/."] }));
    let named = ok(&on, &alice, "send_message", input).await;
    let of = |nth: usize| (&named["attachments"][nth]["name"], &named["attachments"][nth]["media_type"]);
    assert_eq!([of(0), of(1)], [(&json!("notes.md"), &json!("text/markdown")); 2]);
    fs::write(tree.at("src/a\nb.md"), "hello").unwrap();
    let before = on.count("SELECT count(*) FROM mail_messages").await.unwrap();
    for (path, code) in [
        ("src/a\nb.md", Code::InvalidRequest),
        ("src/link", Code::NotFound),
        ("src/absent", Code::NotFound),
        ("../outside", Code::InvalidRequest),
        ("/etc/hostname", Code::InvalidRequest),
    ] {
        let input = tree.letter(json!({ "attachment_paths": [path] }));
        assert_eq!(refusal(&on, &alice, "send_message", input).await, code, "{path}");
    }
    // Whoever may not act for the agent learns nothing about its files.
    let mallory = person(&on, "mallory");
    let input = tree.letter(json!({ "attachment_paths": ["src/notes.md"] }));
    assert_eq!(refusal(&on, &mallory, "send_message", input).await, Code::Forbidden);
    // A project that lies elsewhere has no files here.
    agent(&on, &alice, "GreenCastle").await;
    let elsewhere = with(letter("x"), json!({ "attachment_paths": ["src/notes.md"], "to": ["GreenCastle"] }));
    assert_eq!(refusal(&on, &alice, "send_message", elsewhere).await, Code::FeatureDisabled);
    assert_eq!(on.count("SELECT count(*) FROM mail_messages").await.unwrap(), before);
}

/// The root holds the server's own folder, as a home does.
async fn what_the_server_keeps_for_itself_is_closed(on: TestStore) {
    let (alice, own) = (person(&on, "alice"), Path::new(ROOT).join(OWN));
    fs::create_dir_all(own.join(".git/hooks")).unwrap();
    fs::write(own.join("admin.key"), "secret").unwrap();
    fs::write(own.join("shot.png"), STANDARD.decode(PNG.trim()).unwrap()).unwrap();
    let own = own.to_str().unwrap();
    let message = |project: &str, further: Json| {
        let base = json!({
            "project_key": project, "sender_name": "GreenCastle", "to": ["GreenCastle"], "subject": "x", "body_md": "y",
        });
        with(base, further)
    };
    for (project, prefix) in [(own, ""), (ROOT, "the-servers-own/")] {
        agent_in(&on, &alice, project, "GreenCastle").await;
        for path in [format!("{prefix}admin.key"), format!("./{prefix}admin.key"), format!("{own}/admin.key")] {
            let input = message(project, json!({ "attachment_paths": [path] }));
            assert_eq!(refusal(&on, &alice, "send_message", input).await, Code::Forbidden, "{project}: {path}");
        }
        // Nobody asked for a picture by name, so it stays text as any that cannot be had.
        let body = format!("![a]({prefix}shot.png)");
        let input = message(project, json!({ "body_md": body }));
        assert_eq!(sent(&on, &alice, input).await, (body, Vec::new()), "{project}");
    }
    let install = json!({ "project_key": ROOT, "code_repo_path": own });
    let error = refused(&on, &alice, "install_precommit_guard", install).await;
    assert!(error.code() == Code::Forbidden && error.message().contains("the server itself"), "{error}");
    assert_eq!(fs::read_dir(Path::new(own).join(".git/hooks")).unwrap().count(), 0);
    // What lies beside it is served.
    let tree = Tree::new();
    fs::write(tree.at("src/notes.md"), "hello").unwrap();
    let beside = tree.at("src/notes.md").display().to_string();
    let (_, files) = sent(&on, &alice, message(ROOT, json!({ "attachment_paths": [beside] }))).await;
    assert_eq!(files[0]["name"], "notes.md");
}

/// A white PNG of 40 by 40 pixels whose pixels are stored, not compressed.
const PNG: &str = include_str!("white.png.base64");

async fn images_become_smaller_unless_they_are_to_stay(on: TestStore) {
    let tree = Tree::new();
    let (alice, _) = tree.people(&on).await;
    let image = json!([{ "name": "shot.png", "content_base64": PNG.trim(), "media_type": "image/png" }]);
    let send = async |further: Json| {
        let input = tree.letter(with(json!({ "attachments": image }), further));
        ok(&on, &alice, "send_message", input).await["attachments"][0].clone()
    };
    let smaller = send(json!({})).await;
    assert_eq!((&smaller["name"], &smaller["media_type"]), (&json!("shot.webp"), &json!("image/webp")));
    let kept = send(json!({ "convert_images": false })).await;
    assert_eq!((&kept["name"], &kept["media_type"]), (&json!("shot.png"), &json!("image/png")));
    assert!(number(&smaller, "bytes") < number(&kept, "bytes"));
}

/// The text of the message, and what came with it.
async fn sent(on: &TestStore, caller: &Caller, input: Json) -> (String, Vec<Json>) {
    let answer = ok(on, caller, "send_message", input).await;
    (text(&answer["deliveries"][0]["payload"], "body_md"), answer["attachments"].as_array().unwrap().clone())
}

async fn pictures_of_the_text_come_along(on: TestStore) {
    let tree = Tree::new();
    let (alice, bob) = tree.people(&on).await;
    fs::write(tree.at("src/shot.png"), STANDARD.decode(PNG.trim()).unwrap()).unwrap();
    let data = format!("data:image/png;base64,{}", PNG.trim());
    let body = format!("Look: ![a](src/shot.png), ![b]({data} \"b\") and again ![c](src/shot.png) ![d]({data}).");
    let inline = json!([{ "name": "a.bin", "content_base64": "AP8A" }]);
    let send = tree.letter(json!({ "body_md": body, "attachments": inline, "idempotency_key": "k" }));
    let (shown, files) = sent(&on, &alice, send.clone()).await;
    // The path means the same to whoever works in the project; what was in the text as data is there by its place.
    assert_eq!(
        shown,
        "Look: ![a](src/shot.png), ![b](attachment:2 \"b\") and again ![c](src/shot.png) ![d](attachment:2)."
    );
    let names: Vec<_> = files.iter().map(|file| text(file, "name")).collect();
    assert_eq!(names, ["a.bin", "shot.webp", "image-2.webp"], "each once, and made smaller");
    assert_eq!(sent(&on, &alice, send).await, (shown, files), "the same call under its key");
    let kept = tree.letter(json!({ "body_md": "![a](src/shot.png)", "convert_images": false }));
    let (_, files) = sent(&on, &alice, kept).await;
    assert_eq!((&files[0]["name"], &files[0]["media_type"]), (&json!("shot.png"), &json!("image/png")));
    let id = on.count("SELECT max(message) FROM mail_messages").await.unwrap();
    let reply = json!({
        "project_key": tree.key(), "sender_name": "BlueLake", "message_id": id, "body_md": format!("![x]({data})"),
    });
    let replied = ok(&on, &bob, "reply_message", reply).await;
    assert_eq!(
        (&replied["body_md"], &replied["attachments"][0]["name"]),
        (&json!("![x](attachment:0)"), &json!("image-0.webp"))
    );
}

/// A key stands for what the caller said, and not for what a file held at the time.
async fn a_call_that_is_repeated_under_its_key_needs_no_file_any_more(on: TestStore) {
    let tree = Tree::new();
    let (alice, bob) = tree.people(&on).await;
    let (notes, shot) = (tree.at("src/notes.md"), tree.at("src/shot.png"));
    let image = STANDARD.decode(PNG.trim()).unwrap();
    fs::write(&notes, "one").unwrap();
    fs::write(&shot, &image).unwrap();
    let inline = json!([{ "name": "a.bin", "content_base64": "AP8A" }]);
    let data = format!("![a](data:image/png;base64,{})", PNG.trim());
    let all = |key: &str, body: &str| {
        json!({
            "attachment_paths": ["src/notes.md"], "attachments": inline, "body_md": body, "idempotency_key": key,
        })
    };
    let pictured = tree.letter(json!({ "body_md": "![a](src/shot.png)", "idempotency_key": "pictured" }));
    let sent = tree.letter(all("sent", &data));
    let mut calls = vec![(&alice, "send_message", sent.clone()), (&alice, "send_message", pictured)];
    let mut answers = Vec::new();
    for (caller, name, input) in &calls {
        answers.push(ok(&on, caller, name, input.clone()).await);
    }
    assert_eq!(answers[1]["attachments"][0]["name"], "shot.webp");
    let reply = json!({
        "project_key": tree.key(), "sender_name": "BlueLake", "message_id": answers[0]["deliveries"][0]["payload"]["id"],
    });
    calls.push((&bob, "reply_message", with(reply, all("replied", "![a](src/shot.png)"))));
    answers.push(ok(&on, &bob, "reply_message", calls[2].2.clone()).await);
    let written = on.count("SELECT count(*) FROM mail_messages").await.unwrap();
    for changed in [true, false] {
        for path in [&notes, &shot] {
            if changed { fs::write(path, "two").unwrap() } else { fs::remove_file(path).unwrap() }
        }
        for ((caller, name, input), answer) in calls.iter().zip(&answers) {
            let again = call(&on, caller, name, input.clone()).await;
            assert_eq!((&again.json, again.replay), (answer, true), "{name}, changed: {changed}");
        }
    }
    // What a call says is what counts, and nothing is read to find that it is another.
    for other in [
        json!({ "attachment_paths": ["src/other.md"] }),
        json!({ "attachment_paths": null }),
        json!({ "attachments": [{ "name": "a.bin", "content_base64": "AP8B" }] }),
        json!({ "attachments": [] }),
        json!({ "convert_images": false }),
        json!({ "body_md": "y" }),
    ] {
        let input = with(sent.clone(), other.clone());
        assert_eq!(refusal(&on, &alice, "send_message", input).await, Code::IdempotencyKeyConflict, "{other}");
    }
    assert_eq!(on.count("SELECT count(*) FROM mail_messages").await.unwrap(), written);
    // Another key is another call, which needs the file; and so is this one once its key is forgotten.
    let other = with(sent.clone(), json!({ "idempotency_key": "other" }));
    assert_eq!(refusal(&on, &alice, "send_message", other).await, Code::NotFound);
    pass(&on, 25 * 3_600);
    assert_eq!(refusal(&on, &alice, "send_message", sent).await, Code::NotFound);
}

async fn pictures_that_cannot_be_had_stay_text(on: TestStore) {
    let tree = Tree::new();
    let (alice, _) = tree.people(&on).await;
    let outside = tempfile::tempdir_in(ROOT).unwrap();
    let image = STANDARD.decode(PNG.trim()).unwrap();
    fs::write(outside.path().join("secret.png"), &image).unwrap();
    fs::write(tree.at("src/words.png"), "TOKEN=1").unwrap();
    fs::write(tree.at(".env"), &image).unwrap();
    std::os::unix::fs::symlink(outside.path().join("secret.png"), tree.at("src/link.png")).unwrap();
    std::os::unix::fs::symlink(outside.path(), tree.at("out")).unwrap();
    let up = format!("../{}/secret.png", outside.path().file_name().unwrap().to_str().unwrap());
    let absolute = outside.path().join("secret.png").display().to_string();
    for path in [
        "src/absent.png",
        "src/words.png",
        ".env",
        "src/link.png",
        "out/secret.png",
        &up,
        &absolute,
        "src",
        "data:image/png;base64,AAAA",
        "data:image/png;base64,!",
        "https://example.org/a.png",
    ] {
        let body = format!("![a]({path})");
        assert_eq!(sent(&on, &alice, tree.letter(json!({ "body_md": body }))).await, (body, Vec::new()), "{path}");
    }
    // So many and no more are looked at.
    let max = rooted().attachments_max;
    for number in 0..=max {
        fs::write(tree.at(&format!("{number}.png")), &image).unwrap();
    }
    let body: String = (0..=max).map(|number| format!("![]({number}.png)\n")).collect();
    let (shown, files) = sent(&on, &alice, tree.letter(json!({ "body_md": body }))).await;
    assert_eq!((shown, files.len()), (body, max));
    // Whoever may not act for the agent learns nothing about its files, and a project that lies elsewhere has none.
    let mallory = person(&on, "mallory");
    let input = tree.letter(json!({ "body_md": "![](0.png)" }));
    assert_eq!(refusal(&on, &mallory, "send_message", input).await, Code::Forbidden);
    agent(&on, &alice, "GreenCastle").await;
    let elsewhere =
        with(letter("x"), json!({ "body_md": format!("![]({})", tree.at("0.png").display()), "to": ["GreenCastle"] }));
    assert_eq!(sent(&on, &alice, elsewhere).await.1, Vec::<Json>::new());
}

async fn rule_21_the_guard_is_put_into_a_repository_and_taken_out_again(on: TestStore) {
    let tree = Tree::new();
    let (alice, _) = tree.people(&on).await;
    let install = |path: &str| json!({ "project_key": tree.key(), "code_repo_path": path });
    assert_eq!(refusal(&on, &alice, "install_precommit_guard", install(&tree.key())).await, Code::InvalidRequest);
    fs::create_dir_all(tree.at(".git/hooks")).unwrap();
    let (hook, kept) = (tree.at(".git/hooks/pre-commit"), tree.at(".git/hooks/pre-commit.orig"));
    fs::write(&hook, "#!/bin/sh\necho mine\n").unwrap();
    let mut texts = Vec::new();
    for _ in 0..2 {
        let answer = ok(&on, &alice, "install_precommit_guard", install(&tree.key())).await;
        assert_eq!(answer["hook"], hook.display().to_string());
        texts.push(fs::read(&hook).unwrap());
        assert_eq!(fs::read_to_string(&kept).unwrap(), "#!/bin/sh\necho mine\n");
    }
    assert_eq!(texts[0], texts[1], "byte for byte");
    let taken = ok(&on, &alice, "uninstall_precommit_guard", json!({ "code_repo_path": tree.key() })).await;
    assert_eq!(taken["restored"], json!([hook.display().to_string()]));
    assert_eq!((fs::read_to_string(&hook).unwrap().as_str(), kept.exists()), ("#!/bin/sh\necho mine\n", false));
    // Elsewhere the command does it, with the rights of whoever runs it.
    let error = refused(&on, &alice, "install_precommit_guard", install("/usr")).await;
    assert_eq!(error.code(), Code::FeatureDisabled);
    assert!(error.cure().contains("waybill guard install"), "{}", error.cure());
}
