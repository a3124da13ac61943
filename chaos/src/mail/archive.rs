//! The archive of a project as people find it: plain files, and a repository that git reads.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::judge::Sent;
use crate::checker::{Invariant, Violation};

/// Bits by which others than the owner read or write.
const OTHERS: u32 = 0o077;
/// Names of what is half written begin with this.
const HALF: &str = ".tmp-";

/// Every promised message has one whole file, every promised acknowledgement is in its agent's files, and nobody else reads any of it.
pub fn judge(project: &Path, all: &BTreeMap<String, Sent>) -> Vec<Violation> {
    let files = project.join("files");
    let mut found = Vec::new();
    walk(&files, &mut found);
    let mut violations = Vec::new();
    let (mut canonical, mut seen): (HashMap<i64, Value>, HashMap<(String, i64), Value>) = Default::default();
    for path in &found {
        let shown = path.strip_prefix(&files).unwrap_or(path).display().to_string();
        let mut unfiled = |why: &str| violations.push(Violation::new(Invariant::Unfiled, format!("{shown}: {why}")));
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(HALF)) {
            continue;
        }
        let Ok(text) = fs::read_to_string(path) else { continue };
        if shown.starts_with("messages/2") {
            match head(&text).and_then(|head| Some((head["id"].as_i64()?, head))) {
                Some((id, head)) => {
                    if canonical.insert(id, head).is_some() {
                        unfiled("a second file of this message");
                    }
                }
                None => unfiled("half a message"),
            }
        } else if let Some((agent, _)) = shown.strip_prefix("agents/").and_then(|rest| rest.split_once("/state/")) {
            match serde_json::from_str::<Vec<Value>>(&text) {
                Ok(page) => {
                    let numbered = page.into_iter().filter_map(|times| Some((times["id"].as_i64()?, times)));
                    seen.extend(numbered.map(|(id, times)| ((agent.to_owned(), id), times)));
                }
                Err(_) => unfiled("no list of what was seen"),
            }
        } else if shown.ends_with(".json") && serde_json::from_str::<Value>(&text).is_err() {
            unfiled("half a file");
        }
    }
    for (key, sent) in all {
        let Some(id) = sent.promised() else { continue };
        match canonical.get(&id) {
            None => {
                violations.push(Violation::new(Invariant::Unfiled, format!("mail {key} (message {id}) has no file")))
            }
            Some(head) if head["subject"] != key.as_str() => {
                violations.push(Violation::new(Invariant::Unfiled, format!("the file of message {id} is not {key}")));
            }
            Some(_) => {}
        }
        if let Some((agent, true)) = &sent.ack
            && !seen.get(&(agent.clone(), id)).is_some_and(|times| times["ack_ts"].is_string())
        {
            let detail = format!("{agent} has acknowledged message {id}, and its files say otherwise");
            violations.push(Violation::new(Invariant::Outdated, detail));
        }
    }
    violations.extend(exposed(project));
    violations
}

/// Names and kinds of files at once, whatever stands in the way of reading them.
fn walk(folder: &Path, into: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => walk(&entry.path(), into),
            Ok(kind) if kind.is_file() => into.push(entry.path()),
            _ => {}
        }
    }
}

fn head(text: &str) -> Option<Value> {
    let (head, _) = text.strip_prefix("---json\n")?.split_once("\n---\n")?;
    serde_json::from_str(head).ok()
}

/// What others than the owner could read, half-written files included.
fn exposed(project: &Path) -> Vec<Violation> {
    let mut all = Vec::new();
    walk(&project.join("files"), &mut all);
    let open = all.iter().filter(|path| fs::metadata(path).is_ok_and(|found| found.permissions().mode() & OTHERS != 0));
    let detail = |path: &std::path::PathBuf| format!("{} may be read by others", path.display());
    open.take(3).map(|path| Violation::new(Invariant::Exposed, detail(path))).collect()
}

fn packs(repository: &Path) -> BTreeSet<std::ffi::OsString> {
    let entries = fs::read_dir(repository.join("objects/pack"));
    entries.into_iter().flatten().flatten().map(|entry| entry.file_name()).collect()
}

/// git finds nothing wrong, and the tree of HEAD is what lies beside it.
pub fn fsck(project: &Path) -> Vec<Violation> {
    let repository = project.join("archive.git");
    let git = |args: &[&str]| {
        Command::new("git").arg("--git-dir").arg(&repository).args(args).env("GIT_CONFIG_GLOBAL", "/dev/null").output()
    };
    let mut violations = Vec::new();
    let mut packs = packs(&repository);
    loop {
        match git(&["fsck", "--full", "--strict", "--no-dangling"]) {
            Ok(output) if output.status.success() => break,
            Ok(output) => {
                // The check reads the names of packs once, and misses one that the server has merged into another meanwhile.
                let now = self::packs(&repository);
                if packs != now {
                    packs = now;
                    continue;
                }
                let why = String::from_utf8_lossy(&output.stderr).chars().take(300).collect::<String>();
                violations.push(Violation::new(Invariant::Unfiled, format!("git fsck: {why}")));
                break;
            }
            // A machine without git judges the files alone.
            Err(_) => return violations,
        }
    }
    if let Ok(listed) = git(&["ls-tree", "-r", "--name-only", "-z", "HEAD"]) {
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        let tree: BTreeSet<String> = text.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let (files, mut found) = (project.join("files"), Vec::new());
        walk(&files, &mut found);
        let plain = |path: &std::path::PathBuf| path.strip_prefix(&files).ok()?.to_str().map(str::to_owned);
        let half = |path: &String| path.rsplit('/').next().is_some_and(|name| name.starts_with('.'));
        let files: BTreeSet<String> = found.iter().filter_map(plain).filter(|path| !half(path)).collect();
        for path in tree.symmetric_difference(&files).take(3) {
            let detail = format!("{path} is in the tree of HEAD or among the files, and not in both");
            violations.push(Violation::new(Invariant::Unfiled, detail));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::super::judge::Fate;
    use super::*;

    fn put(project: &Path, path: &str, content: &str, mode: u32) {
        let path = project.join("files").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn each_harm_to_the_archive_has_its_name() {
        let ack = Some(("A".to_owned(), true));
        let sent =
            Sent { request: Value::Null, recipients: BTreeSet::from(["A".to_owned()]), fate: Fate::Promised(7), ack };
        let all = BTreeMap::from([("k".to_owned(), sent)]);
        let message = format!("---json\n{}\n---\n\nText\n", json!({ "id": 7, "subject": "k" }));
        let names = |harm: &dyn Fn(&Path)| -> Vec<&'static str> {
            let place = tempfile::tempdir().unwrap();
            put(place.path(), "messages/2026/x__7.md", &message, 0o600);
            put(place.path(), "agents/A/state/0.json", &json!([{ "id": 7, "ack_ts": "now" }]).to_string(), 0o600);
            harm(place.path());
            judge(place.path(), &all).iter().map(|found| found.invariant.name()).collect()
        };
        assert!(names(&|_| {}).is_empty());
        let gone = |project: &Path| fs::remove_file(project.join("files/messages/2026/x__7.md")).unwrap();
        assert_eq!(names(&gone), ["unfiled"]);
        assert_eq!(
            names(&|project| put(project, "messages/2026/x__7.md", "---json\n{", 0o600)),
            ["unfiled", "unfiled"]
        );
        assert_eq!(names(&|project| put(project, "agents/A/state/0.json", "[]", 0o600)), ["outdated"]);
        assert_eq!(names(&|project| put(project, "messages/.tmp-1-1", "half", 0o644)), ["exposed"]);
        assert!(names(&|project| put(project, "messages/.tmp-1-1", "half", 0o600)).is_empty());
    }
}
