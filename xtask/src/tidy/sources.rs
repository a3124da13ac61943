//! Rules over the text of the repository: length of Rust files, and words that mark unfinished work.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::workspace::Workspace;

/// Above this a file holds more than one idea.
const RUST_LINES_MAX: usize = 800;

/// Split in two, so that this file does not find itself.
const BANNED: &[&str] = &[
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("for ", "now"),
];

/// Folders that are not ours to judge: version control, build output, caches, installed packages.
const SKIPPED: &[&str] = &[".git", ".cache", "target", "node_modules", "__pycache__"];

/// Texts people write. Lock files and test data are left out on purpose.
const EXTENSIONS: &[&str] =
    &["rs", "md", "toml", "sql", "py", "sh", "js", "mjs", "ts", "html", "css", "yml", "yaml", "json"];

pub fn check(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    let mut files = Vec::new();
    collect(&workspace.root, &workspace.target, &mut files)?;
    files.sort();
    let mut findings = Vec::new();
    for file in files {
        let bytes = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let text = String::from_utf8_lossy(&bytes);
        findings.extend(check_text(workspace.relative(&file), &text));
    }
    Ok(findings)
}

fn collect(folder: &Path, target: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if kind.is_dir() && path != target && !SKIPPED.contains(&name.as_ref()) {
            collect(&path, target, files)?;
        } else if kind.is_file() && is_text(&path) {
            files.push(path);
        }
    }
    Ok(())
}

fn is_text(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| EXTENSIONS.contains(&extension)) || path.ends_with(".ci/run")
}

fn check_text(file: &Path, text: &str) -> Vec<String> {
    let shown = file.display();
    let mut findings = Vec::new();
    let lines = text.lines().count();
    if file.extension().is_some_and(|extension| extension == "rs") && lines > RUST_LINES_MAX {
        findings.push(format!("{shown} has {lines} lines, more than {RUST_LINES_MAX}: split it by idea"));
    }
    for (number, line) in (1..).zip(text.lines()) {
        for word in BANNED.iter().filter(|word| has_word(line, word)) {
            findings.push(format!("{shown}:{number}: `{word}`: finish it, or say in plain words what is missing"));
        }
    }
    findings
}

/// As a word of its own: `mktemp` templates and hexadecimal test data are not meant.
fn has_word(line: &str, word: &str) -> bool {
    let joins = |c: char| c.is_alphanumeric() || c == '_';
    let closed = word.ends_with('(');
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back().is_some_and(joins);
        let after = line[at + word.len()..].chars().next().is_some_and(joins);
        !before && (closed || !after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn banned_words_are_found_as_words() {
        let fixme = BANNED[2];
        let crosses = BANNED[3];
        let postponed = BANNED[4];
        for (line, found) in [
            (format!("// {fixme}: later"), true),
            (format!("mktemp -d /tmp/a.{crosses}{crosses}"), false),
            (format!("good enough {postponed}."), true),
            (format!("wait {postponed}here"), false),
            (format!("    {}\"later\")", BANNED[0]), true),
            ("a plain line".to_owned(), false),
        ] {
            assert_eq!(!check_text(Path::new("a.md"), &line).is_empty(), found, "{line}");
        }
    }

    #[test]
    fn only_rust_has_a_limit_of_lines() {
        let long = "\n".repeat(RUST_LINES_MAX + 1);
        assert_eq!(check_text(Path::new("a.rs"), &long).len(), 1);
        assert!(check_text(Path::new("a.md"), &long).is_empty());
    }
}
