//! `waybill guard …` in a repository of its own, as git calls it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::json;
use waybill_kernel::Code;
use waybill_testkit::server;

use crate::world::{Engine, World, program};

const PROJECT: &str = "/data/projects/guarded";
/// From the start of the process to its end. A release takes less than 50 ms; this one is built for tests, on a machine that
/// runs others beside it.
const CHECK_MAX: Duration = Duration::from_millis(400);

struct Repository {
    folder: tempfile::TempDir,
}

impl Repository {
    fn new() -> Self {
        let made = Self { folder: tempfile::tempdir().unwrap() };
        made.git(&["init", "-q", "-b", "main"], &[]);
        made.write("src/a.rs", "1");
        made.write("docs/a.md", "1");
        assert!(made.commit(&[]).status.success());
        made
    }

    fn path(&self) -> &str {
        self.folder.path().to_str().unwrap()
    }

    fn git(&self, args: &[&str], env: &[(&str, &str)]) -> Output {
        let mut command = Command::new("git");
        command.arg("-C").arg(self.folder.path());
        command.args(["-c", "user.name=t", "-c", "user.email=t@example", "-c", "commit.gpgsign=false"]).args(args);
        for (name, _) in std::env::vars() {
            if ["WAYBILL_", "GIT_", "AGENT_"].iter().any(|prefix| name.starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        command.envs(env.iter().copied()).output().unwrap()
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self.git(&["add", "-A"], &[]);
    }

    fn commit(&self, env: &[(&str, &str)]) -> Output {
        self.git(&["commit", "-q", "-m", "x"], env)
    }

    fn hook(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(".git/hooks").join(name)
    }

    /// A hook of the user's own, which leaves a trace.
    fn own_hook(&self, name: &str) -> String {
        let text = "#!/bin/sh\ncat > .git/own-ran\n";
        std::fs::create_dir_all(self.folder.path().join(".git/hooks")).unwrap();
        std::fs::write(self.hook(name), text).unwrap();
        std::fs::set_permissions(self.hook(name), std::fs::Permissions::from_mode(0o755)).unwrap();
        text.to_owned()
    }

    fn own_ran(&self) -> bool {
        std::fs::remove_file(self.folder.path().join(".git/own-ran")).is_ok()
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn install(repository: &Repository, more: &[&str]) {
    let ended = program(&[&["guard", "install", "--repo", repository.path(), "--project", PROJECT], more].concat());
    assert_eq!(ended.exit, 0, "{}", ended.stderr);
}

/// Two agents, of whom the first holds `src` exclusively and `docs` shared.
fn agents(data: &str) -> [String; 2] {
    agents_of(data, PROJECT)
}

fn agents_of(data: &str, project: &str) -> [String; 2] {
    let mail = |args: &[&str]| {
        let ended = program(&[&["mail"], args, &["--project", project, "--data", data, "--json"]].concat());
        assert_eq!(ended.exit, 0, "{args:?}: {}", ended.stderr);
        ended.json()
    };
    let names = [(); 2].map(|()| mail(&["register"])["name"].as_str().unwrap().to_owned());
    mail(&["reserve", "src/*.rs", "--reason", "the API", "--agent", &names[0]]);
    mail(&["reserve", "docs", "--shared", "--agent", &names[0]]);
    names
}

#[tokio::test]
async fn a_commit_of_what_another_agent_holds_is_stopped() {
    let mut world = World::start().await;
    let data = world.server.data_dir.to_str().unwrap().to_owned();
    let names = agents(&data);
    let [one, two] = [names[0].as_str(), names[1].as_str()];
    let repository = Repository::new();
    let own = repository.own_hook("pre-commit");
    install(&repository, &[]);
    assert_eq!(std::fs::read_to_string(repository.hook("pre-commit")).unwrap().lines().count(), 3);
    let data_env = ("WAYBILL_DATA", data.as_str());

    repository.write("src/a.rs", "2");
    let stopped = repository.commit(&[data_env, ("AGENT_NAME", two)]);
    let told = said(&stopped);
    assert!(!stopped.status.success() && told.contains("src/a.rs") && told.contains(one), "{told}");
    assert!(told.contains("the API") && told.contains("--no-verify"), "{told}");
    assert!(repository.own_ran(), "the repository's own hook runs first");

    // Somebody whose name is not known, whatever it commits.
    for env in [&[data_env][..], &[data_env, ("AGENT_NAME", " ")]] {
        let stopped = repository.commit(env);
        let told = said(&stopped);
        assert!(!stopped.status.success() && told.contains("AGENT_NAME is not set"), "{told}");
        assert!(told.contains("waybill mail register") && told.contains("AGENT_MAIL_BYPASS=1"), "{told}");
    }

    // Its holder, those who pass it by, and those who only want to be told.
    let lower = one.to_lowercase();
    let bypass = [data_env, ("AGENT_MAIL_BYPASS", "1")];
    let off = [data_env, ("FILE_RESERVATIONS_ENFORCEMENT_ENABLED", "false")];
    let warn = [data_env, ("AGENT_NAME", two), ("AGENT_MAIL_GUARD_MODE", "warn")];
    let warn_nobody = [data_env, ("AGENT_MAIL_GUARD_MODE", "warn")];
    let passes: [&[(&str, &str)]; 5] =
        [&[data_env, ("AGENT_NAME", lower.as_str())], &bypass, &off, &warn, &warn_nobody];
    for (number, env) in passes.iter().enumerate() {
        repository.write("src/a.rs", &format!("3.{number}"));
        let passed = repository.commit(env);
        assert!(passed.status.success(), "{number}: {}", said(&passed));
        let is_told = said(&passed).contains(one);
        assert_eq!(is_told, [3, 4].contains(&number), "{number}: {}", said(&passed));
    }
    // What is shared, and a rename away from what is held.
    repository.write("docs/a.md", "2");
    assert!(repository.commit(&[data_env, ("AGENT_NAME", two)]).status.success());
    repository.git(&["mv", "src/a.rs", "b.rs"], &[]);
    assert!(!repository.commit(&[data_env, ("AGENT_NAME", two)]).status.success());

    // Without a server the database is read, and not changed.
    world.server.term().unwrap();
    let before = contents(Path::new(&data));
    let stopped = repository.commit(&[data_env, ("AGENT_NAME", two)]);
    assert!(!stopped.status.success() && said(&stopped).contains("src/a.rs"), "{}", said(&stopped));
    assert_eq!(contents(Path::new(&data)), before);
    // Where nobody can be asked nobody is stopped.
    let passed = repository.commit(&[("WAYBILL_DATA", "/nonexistent"), ("AGENT_NAME", two)]);
    assert!(passed.status.success() && said(&passed).contains("nothing is stopped"), "{}", said(&passed));

    let ended = program(&["guard", "uninstall", "--repo", repository.path()]);
    assert_eq!(ended.exit, 0, "{}", ended.stderr);
    assert_eq!(std::fs::read_to_string(repository.hook("pre-commit")).unwrap(), own, "the own hook is back");
    assert!(!repository.hook("pre-commit.orig").exists());
}

/// Names and lengths of the files of a folder.
fn contents(folder: &Path) -> Vec<(String, u64)> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len()))
        .collect();
    files.sort();
    files
}

#[tokio::test]
async fn a_push_is_judged_by_its_commits_and_a_merge_by_what_it_changes_itself() {
    let world = World::start().await;
    let data = world.server.data_dir.to_str().unwrap().to_owned();
    let [one, two] = agents(&data);
    let (repository, remote) = (Repository::new(), tempfile::tempdir().unwrap());
    repository.git(&["init", "-q", "--bare", remote.path().to_str().unwrap()], &[]);
    repository.git(&["remote", "add", "origin", remote.path().to_str().unwrap()], &[]);
    assert!(repository.git(&["push", "-q", "origin", "main"], &[]).status.success());
    repository.own_hook("pre-push");
    install(&repository, &["--pre-push"]);
    let (data_env, as_one, as_two) = (("WAYBILL_DATA", data.as_str()), ("AGENT_NAME", &*one), ("AGENT_NAME", &*two));

    // The holder works on a branch; the other merges it, which changes nothing by itself.
    repository.git(&["checkout", "-q", "-b", "theirs"], &[]);
    repository.write("src/a.rs", "2");
    assert!(repository.commit(&[data_env, as_one]).status.success());
    assert!(repository.git(&["push", "-q", "origin", "theirs"], &[data_env, as_one]).status.success());
    assert!(repository.own_ran(), "the repository's own hook is given what git says");
    repository.git(&["checkout", "-q", "main"], &[]);
    repository.write("docs/b.md", "1");
    assert!(repository.commit(&[data_env, as_two]).status.success());
    repository.git(&["merge", "-q", "--no-ff", "--no-commit", "theirs"], &[data_env, as_two]);
    let merged = repository.git(&["commit", "-q", "--no-edit"], &[data_env, as_two]);
    assert!(merged.status.success(), "{}", said(&merged));
    let pushed = repository.git(&["push", "-q", "origin", "main"], &[data_env, as_two]);
    assert!(pushed.status.success(), "what the remote has already is not pushed again: {}", said(&pushed));

    // A commit that went past the guard is met at the push.
    repository.write("src/a.rs", "3");
    assert!(repository.git(&["commit", "-q", "--no-verify", "-m", "x"], &[data_env, as_two]).status.success());
    let stopped = repository.git(&["push", "-q", "origin", "main"], &[data_env, as_two]);
    assert!(!stopped.status.success() && said(&stopped).contains("src/a.rs"), "{}", said(&stopped));
    assert!(repository.git(&["push", "-q", "--no-verify", "origin", "main"], &[data_env, as_two]).status.success());
}

/// Linked working trees share their hooks, wherever those were installed from.
#[tokio::test]
async fn a_linked_working_tree_is_guarded_as_the_one_it_was_made_from() {
    let world = World::with(Engine::Sqlite, "[mail]\nallow_ephemeral_projects = true\n", &[]).await;
    let data = world.server.data_dir.to_str().unwrap().to_owned();
    for from_linked in [false, true] {
        let (main, linked) = (Repository::new(), Repository { folder: tempfile::tempdir().unwrap() });
        let added = main.git(&["worktree", "add", "-q", "-b", "side", linked.path()], &[]);
        assert!(added.status.success(), "{}", said(&added));
        let project = main.folder.path().canonicalize().unwrap();
        let [one, two] = agents_of(&data, project.to_str().unwrap());
        let from = if from_linked { &linked } else { &main };
        let ended = program(&["guard", "install", "--repo", from.path(), "--json"]);
        assert_eq!((ended.exit, &ended.json()["project"]), (0, &json!(null)), "{}", ended.stderr);
        let data_env = ("WAYBILL_DATA", data.as_str());
        for tree in [&main, &linked] {
            tree.write("src/a.rs", "2");
            let stopped = tree.commit(&[data_env, ("AGENT_NAME", &two)]);
            assert!(!stopped.status.success() && said(&stopped).contains(&one), "{from_linked}: {}", said(&stopped));
            assert!(tree.commit(&[data_env, ("AGENT_NAME", &one)]).status.success());
        }
    }
    // Where there is no project it is said that nothing is known.
    let alone = Repository::new();
    assert_eq!(program(&["guard", "install", "--repo", alone.path()]).exit, 0);
    alone.write("src/a.rs", "2");
    let passed = alone.commit(&[("WAYBILL_DATA", &data), ("AGENT_NAME", "RedFox")]);
    assert!(passed.status.success() && said(&passed).contains("there is no project"), "{}", said(&passed));
}

#[tokio::test]
async fn a_guard_is_put_where_git_looks_and_nowhere_else_unasked() {
    let repository = Repository::new();
    repository.git(&["config", "core.hooksPath", "shared"], &[]);
    let refused = program(&["guard", "install", "--repo", repository.path()]);
    refused.must_be_cured(Code::ConfigInvalid, "--shared-hooks", "core.hooksPath is set");
    assert!(!repository.folder.path().join("shared").exists() && !repository.hook("pre-commit").exists());
    install(&repository, &["--shared-hooks"]);
    assert!(repository.folder.path().join("shared/pre-commit").exists());
    let outside = tempfile::tempdir().unwrap();
    let nowhere = program(&["guard", "install", "--repo", outside.path().to_str().unwrap()]);
    nowhere.must_be_cured(Code::PathUnusable, "git init", "no repository");
    let none = program(&["guard", "uninstall", "--repo", Repository::new().path(), "--json"]);
    assert_eq!(none.json(), json!({ "removed": [], "restored": [] }));
}

/// The fastest of several, since other tests run beside it.
#[tokio::test]
async fn a_check_holds_nobody_up() {
    let world = World::start().await;
    let data = world.server.data_dir.to_str().unwrap().to_owned();
    let [_, two] = agents(&data);
    let repository = Repository::new();
    repository.write("docs/a.md", "2");
    let check = || {
        let began = Instant::now();
        let ended = Command::new(server::binary())
            .args([
                "guard",
                "check",
                "--repo",
                repository.path(),
                "--project",
                PROJECT,
                "--agent",
                &two,
                "--data",
                &data,
            ])
            .output()
            .unwrap();
        assert!(ended.status.success(), "{}", said(&ended));
        began.elapsed()
    };
    let fastest = (0..20).map(|_| check()).min().unwrap();
    assert!(fastest < CHECK_MAX, "{fastest:?}");
}
