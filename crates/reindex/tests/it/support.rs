//! Archives to read, and what came of them.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value as Json, json};
use waybill_reindex::{Options, Report, Source, reindex};
use waybill_testkit::stores::{TestStore, readable};

pub const BACKEND: &str = "/data/projects/backend";
pub const FRONT: &str = "/data/projects/front end";

/// Tables that an import writes, each with its order.
const TABLES: &[(&str, &str)] = &[
    ("mail_projects", "project, tenant, slug, human_key, created_at"),
    (
        "mail_agents",
        "agent, tenant, project, name, name_key, program, model, task, policy, attachments_policy, reaper_exempt, principal, \
         created_at, active_at, retired_at",
    ),
    (
        "mail_messages",
        "message, tenant, project, sender, sender_name, thread, reply_to, subject, body, importance, ack_required, intro, \
         names, attachments, created_at",
    ),
    (
        "mail_recipients",
        "message, agent, tenant, kind, sender, urgent, ack_required, intro, created_at, read_at, ack_at",
    ),
    ("mail_attachments", "message, position, tenant, name, media_type, sha256, content"),
    ("mail_contacts", "from_agent, to_agent, tenant, status, reason, created_at, updated_at, expires_at"),
    ("mail_inbox_events", "seq, tenant, agent, message, at"),
    (
        "mail_reservations",
        "reservation, tenant, project, agent, path, head, exclusive, reason, created_at, expires_at, released_at",
    ),
    ("mail_build_slots", "project, slot, agent, tenant, exclusive, acquired_at, expires_at, released_at"),
    ("mail_products", "product, tenant, key, name, created_at"),
    ("mail_product_projects", "product, project, tenant, linked_at"),
    ("mail_archive_rows", "row, tenant, project, kind, ref"),
    ("mail_changes", "project, agent, tenant, changes"),
];

/// The sample of the Python server, unpacked from `../shared/samples` beside the repository; None where there is none.
pub fn sample() -> Option<(tempfile::TempDir, PathBuf)> {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/samples/agent-mail-python.tar.xz");
    if !packed.exists() {
        assert!(std::env::var_os("CI").is_none(), "there is no sample of an existing archive at {}", packed.display());
        eprintln!("skipped: there is no sample of an existing archive");
        return None;
    }
    let temp = tempfile::tempdir().unwrap();
    let unpacked = Command::new("tar").arg("xf").arg(&packed).arg("-C").arg(temp.path()).status().unwrap();
    assert!(unpacked.success());
    let root = temp.path().join("agent-mail-python/archive");
    Some((temp, root))
}

pub async fn import(on: &TestStore, root: &Path) -> Report {
    import_for(on, root, &on.admin.principal.to_string()).await
}

/// For agents that belong to this principal from then on.
pub async fn import_for(on: &TestStore, root: &Path, principal: &str) -> Report {
    let (tenant, admin) = (on.admin.tenant, on.admin.principal.to_string());
    let options = Options { tenant, principal: principal.to_owned(), admin, archived: true };
    let source = Source::legacy(root).map_err(readable).unwrap();
    reindex(&on.store, source, &options, &|_, _| true).await.map_err(readable).unwrap()
}

/// Every row of mail, as text.
pub async fn rows(on: &TestStore) -> Vec<String> {
    let mut all = Vec::new();
    for (table, columns) in TABLES {
        let sql = format!("SELECT {columns} FROM {table} ORDER BY 1, 2, 3");
        let rows = on.rows(&sql).await.map_err(readable).unwrap();
        all.extend(rows.iter().map(|row| format!("{table} {row:?}")));
    }
    all
}

pub async fn ok(on: &TestStore, name: &str, input: Json) -> Json {
    on.call(&on.admin, name, input.clone())
        .await
        .map_err(readable)
        .unwrap_or_else(|e| panic!("{name} {input}: {e}"))
        .json
}

/// Numbers and kinds of what an agent has got, the oldest first.
pub async fn inbox(on: &TestStore, project: &str, agent: &str) -> Vec<(i64, String)> {
    let input = json!({ "project_key": project, "agent_name": agent, "limit": 1000 });
    let answer = ok(on, "fetch_inbox", input).await;
    let of = |one: &Json| (one["id"].as_i64().unwrap(), one["kind"].as_str().unwrap().to_owned());
    let mut all: Vec<_> = answer["result"].as_array().unwrap().iter().map(of).collect();
    all.sort();
    all
}

/// A small archive as the Python server writes them.
pub struct Written {
    pub temp: tempfile::TempDir,
}

impl Written {
    pub fn new() -> Self {
        Self { temp: tempfile::tempdir().unwrap() }
    }

    pub fn root(&self) -> PathBuf {
        self.temp.path().join("archive")
    }

    pub fn file(&self, path: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.root().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    pub fn agent(&self, project: &str, id: i64, name: &str) {
        let profile = json!({
            "id": id, "name": name, "program": "codex-cli", "model": "m", "project_id": 1, "task_description": "",
            "inception_ts": "2026-11-16T18:43:20+00:00", "last_active_ts": "2026-11-16T18:43:20+00:00",
        });
        self.file(&format!("projects/{project}/agents/{name}/profile.json"), profile.to_string());
    }

    /// From GreenCastle to BlueLake of /w, whose folder is `w`.
    pub fn message(&self, id: i64, further: Json) -> PathBuf {
        self.message_at(&format!("projects/w/messages/2026/11/2026-11-16T18-43-21Z__x__{id}.md"), id, further)
    }

    pub fn message_at(&self, path: &str, id: i64, further: Json) -> PathBuf {
        let mut head = json!({
            "id": id, "from": "GreenCastle", "to": ["BlueLake"], "cc": [], "bcc": [], "subject": format!("Note {id}"),
            "thread_id": null, "importance": "normal", "ack_required": false, "created": "2026-11-16T18:43:21.5+00:00",
            "project": "/w", "project_slug": "w", "attachments": [],
        });
        for (name, value) in further.as_object().unwrap() {
            head[name] = value.clone();
        }
        self.file(path, format!("---json\n{head:#}\n---\n\nhello {id}\n"))
    }
}
