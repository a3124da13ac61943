//! Names of agents: an adjective and a noun of our lists, as in GreenCastle. Such a name says nothing about what its agent is, so
//! none goes stale, and people tell them apart at a glance.

use std::collections::HashSet;
use std::sync::LazyLock;

use waybill_kernel::{Code, Error, Result};

use super::words::{ADJECTIVES, NOUNS};

pub const NAME_CHARS_MAX: usize = 64;
/// Names that nobody registers: people write as the first, the program as the second.
pub const OVERSEER: &str = "HumanOverseer";
pub const SYSTEM: &str = "WaybillMail";
/// What is longer was meant for no name, and is compared with none.
pub const MEANT_BYTES_MAX: usize = 4 * NAME_CHARS_MAX;
/// Names in one answer of suggestions.
const SUGGESTIONS_MAX: usize = 5;
/// After so many draws a third word is added: a project with most names taken still finds one.
pub const PLAIN_DRAWS: usize = 8;

const PROGRAMS: &[&str] = &[
    "aider",
    "amp",
    "claude-code",
    "claudecode",
    "cline",
    "codex",
    "codex-cli",
    "copilot",
    "cursor",
    "gemini-cli",
    "goose",
    "opencode",
    "roo",
    "windsurf",
    "zed",
];
const MODELS: &[&str] = &[
    "claude", "gpt", "gemini", "llama", "mistral", "sonnet", "opus", "haiku", "o1", "o3", "o4", "grok", "qwen",
    "deepseek",
];
const BROADCASTS: &[&str] =
    &["all", "*", "everyone", "everybody", "broadcast", "@all", "@everyone", "@channel", "@here"];
const ROLES: &[&str] = &[
    "agent",
    "assistant",
    "backend",
    "bot",
    "builder",
    "coder",
    "dev",
    "developer",
    "engineer",
    "fixer",
    "frontend",
    "helper",
    "lead",
    "manager",
    "migrator",
    "planner",
    "refactorer",
    "reviewer",
    "tester",
    "worker",
    "writer",
];

static FIRST: LazyLock<HashSet<String>> = LazyLock::new(|| lower(ADJECTIVES));
static SECOND: LazyLock<HashSet<String>> = LazyLock::new(|| lower(NOUNS));

fn lower(words: &[&str]) -> HashSet<String> {
    words.iter().map(|word| word.to_ascii_lowercase()).collect()
}

/// What a name is found by.
pub fn key(name: &str) -> String {
    name.trim().to_ascii_lowercase()
}

/// How many names there are.
pub fn combinations() -> usize {
    ADJECTIVES.len() * NOUNS.len()
}

/// A name made of random bits; with `numbered` a number follows, for a project that has most names already.
pub fn draw(random: u64, numbered: bool) -> String {
    let pick = |words: &[&'static str], bits: u64| words[(bits % words.len() as u64) as usize];
    let name = format!("{}{}", pick(ADJECTIVES, random), pick(NOUNS, random >> 20));
    if numbered { format!("{name}{}", 2 + (random >> 40) % 9_998) } else { name }
}

/// The name as it is stored, or why it is none.
pub fn check(name: &str) -> Result<String> {
    let name = name.trim();
    if name.chars().count() <= NAME_CHARS_MAX
        && let Some(spelled) = spelled(name)
    {
        return Ok(spelled);
    }
    Err(Error::new(Code::InvalidAgentName, format!("That is no name for an agent: {}", why_not(name)))
        .with("examples", vec!["GreenCastle", "BlueLake"]))
}

/// An adjective, a noun and maybe a number, in whatever case; None for anything else.
fn spelled(name: &str) -> Option<String> {
    if !name.is_ascii() {
        return None;
    }
    let letters = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = &name[letters.len()..];
    if number.len() > 4 || number.starts_with('0') || number == "1" {
        return None;
    }
    let low = letters.to_ascii_lowercase();
    let at = (1..low.len()).find(|at| FIRST.contains(&low[..*at]) && SECOND.contains(&low[*at..]))?;
    Some(format!("{}{}{number}", capital(&low[..at]), capital(&low[at..])))
}

fn capital(word: &str) -> String {
    let mut text = word.to_owned();
    if let Some(first) = text.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    text
}

/// Which parameter was meant, if it looks like one.
fn why_not(name: &str) -> String {
    let low = name.to_ascii_lowercase();
    let looks = |words: &[&str]| words.iter().any(|word| low == *word || low.starts_with(&format!("{word}-")));
    let rule = "use an adjective and a noun, as in GreenCastle, or leave it out and one is made.";
    if name.is_empty() {
        format!("it is empty; {rule}")
    } else if low.contains('@') && low.contains('.') {
        format!("it is an e-mail address; {rule}")
    } else if BROADCASTS.contains(&low.as_str()) {
        format!("nobody is everybody; {rule}")
    } else if [OVERSEER, SYSTEM].iter().any(|reserved| reserved.eq_ignore_ascii_case(name)) {
        format!("it is reserved; {rule}")
    } else if looks(PROGRAMS) {
        format!("it is a program, which goes into `program`; {rule}")
    } else if looks(MODELS) {
        format!("it is a model, which goes into `model`; {rule}")
    } else if ROLES.iter().any(|role| low.ends_with(role) || low.starts_with(role)) {
        format!("it says what the agent does, which goes into `task_description`; {rule}")
    } else {
        rule.to_owned()
    }
}

/// Of the names that are known, those that one may have meant, the nearest first.
pub fn suggestions(meant: &str, known: &[String]) -> Vec<String> {
    if meant.len() > MEANT_BYTES_MAX {
        return Vec::new();
    }
    let meant = key(meant);
    let mut near: Vec<(usize, &String)> = known
        .iter()
        .filter_map(|name| {
            let low = name.to_ascii_lowercase();
            let part = meant.len() >= 3 && (low.contains(&meant) || meant.contains(&low));
            let far = distance(&meant, &low);
            (part || far <= meant.len().max(low.len()) / 3).then_some((far, name))
        })
        .collect();
    near.sort();
    near.into_iter().take(SUGGESTIONS_MAX).map(|(_, name)| name.clone()).collect()
}

/// How many letters must be changed, added or left out. Long texts are compared by their beginnings.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) =
        (a.chars().take(NAME_CHARS_MAX).collect(), b.chars().take(NAME_CHARS_MAX).collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut before = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = before + usize::from(x != y);
            before = row[j + 1];
            row[j + 1] = changed.min(before + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_a_hundred_thousand_names_and_the_known_ones_among_them() {
        assert!(combinations() >= 100_000, "{}", combinations());
        assert_eq!((FIRST.len(), SECOND.len()), (ADJECTIVES.len(), NOUNS.len()), "a word stands twice");
        for name in ["GreenCastle", "BlueLake"] {
            assert_eq!(check(name).unwrap(), name);
            assert_eq!(check(&format!(" {} ", name.to_lowercase())).unwrap(), name);
        }
    }

    #[test]
    fn what_is_drawn_is_a_name() {
        for seed in 0..2_000_u64 {
            let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            for numbered in [false, true] {
                let name = draw(random, numbered);
                assert_eq!(key(&check(&name).unwrap()), key(&name));
            }
        }
    }

    #[test]
    fn what_is_none_is_refused_with_the_parameter_that_was_meant() {
        for (name, hint) in [
            ("claude-code", "`program`"),
            ("Codex", "`program`"),
            ("gpt-5", "`model`"),
            ("opus", "`model`"),
            ("alice@example.com", "e-mail"),
            ("all", "everybody"),
            ("BackendDeveloper", "`task_description`"),
            ("HumanOverseer", "reserved"),
            ("", "empty"),
            ("Green Castle", "GreenCastle"),
            ("GrünesSchloss", "GreenCastle"),
            ("GreenCastle01", "GreenCastle"),
        ] {
            let error = check(name).unwrap_err();
            assert_eq!(error.code(), Code::InvalidAgentName, "{name}");
            assert!(error.message().contains(hint), "{name}: {error}");
        }
        assert!(check(&"x".repeat(10_000)).is_err());
    }

    #[test]
    fn suggestions_are_near_and_few() {
        let known: Vec<String> = ["GreenCastle", "BlueLake", "RedFox"].map(String::from).to_vec();
        assert_eq!(suggestions("GreenCastel", &known), ["GreenCastle"]);
        assert_eq!(suggestions("bluelake2", &known), ["BlueLake"]);
        assert_eq!(suggestions("lake", &known), ["BlueLake"]);
        assert!(suggestions("Xylophone", &known).is_empty());
        assert!(suggestions(&"GreenCastle".repeat(100), &known).is_empty(), "too long to be looked through");
        let many: Vec<String> = (0..100).map(|n| format!("GreenCastle{n}")).collect();
        assert_eq!(suggestions("GreenCastle", &many).len(), SUGGESTIONS_MAX);
    }
}
