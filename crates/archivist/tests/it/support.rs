//! A store, an archive in a temporary folder, and git to judge it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use serde_json::{Value as Json, json};
use waybill_archive::repo::{Archive, ProjectKey};
use waybill_archivist::{Archivist, Settings, reconcile};
use waybill_kernel::Caller;
use waybill_mail::archive_health::ArchiveHealth;
pub use waybill_testkit::stores::person;
use waybill_testkit::stores::{TestStore, readable};

pub const HOME: &str = "/data/projects/backend";
pub const SLUG: &str = "data-projects-backend";
pub const OTHER: &str = "/data/projects/frontend";
pub const OTHER_SLUG: &str = "data-projects-frontend";

pub struct World {
    pub on: TestStore,
    pub folder: tempfile::TempDir,
    pub archive: Arc<Archive>,
    pub alice: Caller,
    pub bob: Caller,
}

impl World {
    /// GreenCastle of alice and BlueLake of bob, who let each other write.
    pub async fn new(on: TestStore) -> Self {
        metrics();
        let folder = tempfile::tempdir().unwrap();
        let archive = Arc::new(Archive::new(folder.path().join("root"), settings().limits()));
        let (alice, bob) = (person(&on, "alice"), person(&on, "bob"));
        let world = Self { on, folder, archive, alice, bob };
        for (caller, name) in [(&world.alice, "GreenCastle"), (&world.bob, "BlueLake")] {
            world.agent(caller, HOME, name).await;
        }
        world
    }

    pub fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    pub fn key(&self) -> ProjectKey {
        ProjectKey::new("default", SLUG)
    }

    pub fn project(&self) -> PathBuf {
        self.key().below(&self.root())
    }

    pub fn health(&self) -> ArchiveHealth {
        self.on.store.settings().get::<ArchiveHealth>().clone()
    }

    pub fn archivist(&self, settings: Settings) -> Archivist {
        Archivist::new(self.on.store.clone(), Arc::clone(&self.archive), settings, self.health())
    }

    /// Writes all that is due.
    pub async fn settle(&self) {
        self.archivist(settings()).settle().await.map_err(readable).unwrap();
    }

    pub async fn call(&self, caller: &Caller, name: &str, input: Json) -> Json {
        let answer = self.on.call(caller, name, input.clone()).await.map_err(readable);
        answer.unwrap_or_else(|error| panic!("{name} {input}: {error}")).json
    }

    pub async fn agent(&self, caller: &Caller, path: &str, name: &str) {
        self.call(caller, "ensure_project", json!({ "human_key": path })).await;
        let input = json!({ "project_key": path, "program": "claude-code", "model": "opus", "name": name });
        self.call(caller, "register_agent", input).await;
        self.call(caller, "set_contact_policy", json!({ "project_key": path, "agent_name": name, "policy": "open" }))
            .await;
    }

    /// From GreenCastle to BlueLake; answers with its number.
    pub async fn send(&self, subject: &str, further: Json) -> i64 {
        let mut input = json!({
            "project_key": HOME, "sender_name": "GreenCastle", "to": ["BlueLake"], "subject": subject, "body_md": "Hello.",
        });
        for (name, value) in further.as_object().unwrap() {
            input[name] = value.clone();
        }
        let sent = self.call(&self.alice, "send_message", input).await;
        sent["deliveries"][0]["payload"]["id"].as_i64().unwrap()
    }

    pub async fn rows(&self, state: &str) -> i64 {
        self.on.count(&format!("SELECT count(*) FROM mail_archive_rows WHERE state = '{state}'")).await.unwrap()
    }

    pub async fn health_check(&self) -> Json {
        self.call(&self.alice, "health_check", json!({})).await
    }

    pub async fn check(&self) -> reconcile::Report {
        reconcile::check(&self.on.store, &self.archive, |_| {}).await.map_err(readable).unwrap()
    }

    /// Nothing is left to write, git finds nothing wrong, and the tree of HEAD, the files and the database are the same.
    pub async fn judge(&self) {
        let left = self.on.count("SELECT count(*) FROM mail_archive_rows").await.unwrap();
        assert_eq!(left, 0, "rows are left");
        let changes = self.on.count("SELECT count(*) FROM mail_changes WHERE changes > archived").await.unwrap();
        assert_eq!(changes, 0, "changes are left");
        let report = self.check().await;
        assert!(report.consistent, "{report:?}");
        for key in self.archive.projects().unwrap() {
            judge(&key.below(&self.root()));
        }
    }

    /// Leaves an empty file in the place of an object of the repository.
    pub fn spoil(&self, object: &str) {
        const UNPACK: &str = "mv objects/pack \"$1\" && mkdir objects/pack && \
            for pack in \"$1\"/*.pack; do git unpack-objects -q < \"$pack\" || exit 1; done";
        self.archive.close();
        let git_dir = self.project().join("archive.git");
        let id = git(&git_dir, &["rev-parse", object]);
        let packs = self.folder.path().join("packs");
        let unpacked = Command::new("sh").current_dir(&git_dir).args(["-c", UNPACK, "sh"]).arg(&packs).status();
        assert!(unpacked.unwrap().success());
        let loose = git_dir.join("objects").join(&id.trim()[..2]).join(&id.trim()[2..]);
        std::fs::remove_file(&loose).unwrap();
        std::fs::write(&loose, "").unwrap();
    }

    pub fn files(&self) -> BTreeMap<String, String> {
        files_of(&self.project().join("files"))
    }

    /// The one file whose path has all of these parts.
    pub fn file(&self, parts: &[&str]) -> (String, String) {
        let mut found = self.files().into_iter().filter(|(path, _)| parts.iter().all(|part| path.contains(part)));
        let one = found.next().unwrap_or_else(|| panic!("no file with {parts:?} among {:?}", self.files().keys()));
        assert!(found.next().is_none(), "several files with {parts:?}");
        one
    }

    pub fn json(&self, parts: &[&str]) -> Json {
        serde_json::from_str(&self.file(parts).1).unwrap()
    }

    pub fn log(&self) -> String {
        git(&self.project().join("archive.git"), &["log", "--format=%an|%s|%b"])
    }

    pub fn commits(&self) -> usize {
        git(&self.project().join("archive.git"), &["rev-list", "--count", "HEAD"]).trim().parse().unwrap()
    }
}

/// What `/metrics` would say. The recorder is the process's: one case at a time is judged by it, as nextest runs them.
pub fn rendered() -> String {
    metrics().render()
}

fn metrics() -> &'static PrometheusHandle {
    static METRICS: OnceLock<PrometheusHandle> = OnceLock::new();
    METRICS.get_or_init(|| PrometheusBuilder::new().install_recorder().unwrap())
}

/// One figure of mail, by its name in the contract; 0 where nothing was counted.
pub fn figure(name: &str) -> f64 {
    let name = format!("waybill_mail_{name}");
    let line = rendered().lines().find_map(|line| line.strip_prefix(&name)?.strip_prefix(' ').map(str::to_owned));
    line.map_or(0.0, |value| value.parse().unwrap())
}

/// Quick, and with no opinion about the disk of this machine.
pub fn settings() -> Settings {
    Settings {
        window_ms: 20,
        changes_ms: 20,
        backoff_ms: 10,
        disk_warning_mb: 0,
        disk_critical_mb: 0,
        ..Settings::default()
    }
}

/// The output of git; it must succeed.
pub fn git(folder: &Path, args: &[&str]) -> String {
    let output = Command::new("git")
        .current_dir(folder)
        .args(["-c", "user.name=Somebody", "-c", "user.email=somebody@example.com"])
        .args(args)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "git {args:?} in {}: {out}{err}", folder.display());
    out.into_owned()
}

pub fn judge(project: &Path) {
    git(&project.join("archive.git"), &["fsck", "--full", "--strict", "--no-dangling"]);
    let list = git(&project.join("archive.git"), &["ls-tree", "-r", "--name-only", "HEAD"]);
    let tree: Vec<&str> = list.lines().collect();
    let files = files_of(&project.join("files"));
    let files: Vec<&str> = files.keys().map(String::as_str).collect();
    assert_eq!(tree, files, "tree of HEAD and files");
}

/// Path and content of every file below a folder, those with a leading dot left out.
pub fn files_of(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in std::fs::read_dir(&at).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_name().to_string_lossy().starts_with('.') {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else {
                // Whoever writes at this moment has given it its name since, or has removed it.
                let Ok(content) = std::fs::read(&path) else { continue };
                let name = path.strip_prefix(folder).unwrap().to_string_lossy().into_owned();
                found.insert(name, String::from_utf8_lossy(&content).into_owned());
            }
        }
    }
    found
}
