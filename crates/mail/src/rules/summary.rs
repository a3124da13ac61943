//! What a thread comes to, by rules alone: who took part, what was listed, what is to be done, who was named.
//!
//! Its cost is that of reading the texts once, and everything in it has a bound.

use std::collections::{BTreeMap, BTreeSet};

/// Of each list.
pub const ITEMS_MAX: usize = 10;
pub const PARTICIPANTS_MAX: usize = 50;
const LINE_CHARS_MAX: usize = 200;
/// Before a line that says what is to be done.
const ACTIONS: [&str; 5] = ["todo", "action", "fixme", "next", "blocked"];

/// One message of the thread.
pub struct Said<'a> {
    pub from: &'a str,
    pub body: &'a str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub participants: Vec<String>,
    /// What was listed, first said first.
    pub key_points: Vec<String>,
    /// What is still to be done.
    pub action_items: Vec<String>,
    /// Boxes that were ticked.
    pub done_actions: usize,
    pub open_actions: usize,
    /// Who was named with an @, most often first.
    pub mentions: Vec<(String, usize)>,
    /// What was set in backticks and looks like a path or a name of code.
    pub code_references: Vec<String>,
}

pub fn summarize<'a>(said: impl IntoIterator<Item = Said<'a>>) -> Summary {
    let mut summary = Summary::default();
    let mut participants = BTreeSet::new();
    let mut mentions: BTreeMap<String, usize> = BTreeMap::new();
    for Said { from, body } in said {
        participants.insert(from.to_owned());
        for line in body.lines().map(str::trim).filter(|line| !line.is_empty()) {
            summary.read_line(line);
            for name in mentioned(line) {
                *mentions.entry(name.to_owned()).or_default() += 1;
            }
        }
    }
    summary.participants = participants.into_iter().take(PARTICIPANTS_MAX).collect();
    summary.mentions = most_often(mentions);
    summary
}

/// The most frequent first; of those that are as frequent, in the order of their names.
pub fn most_often(counted: BTreeMap<String, usize>) -> Vec<(String, usize)> {
    let mut counted: Vec<_> = counted.into_iter().collect();
    counted.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    counted.truncate(ITEMS_MAX);
    counted
}

impl Summary {
    fn read_line(&mut self, line: &str) {
        for code in quoted(line) {
            add(&mut self.code_references, code);
        }
        let item = bullet(line);
        let text = item.unwrap_or(line);
        if let Some(done) = ticked(text, 'x').or_else(|| ticked(text, 'X')) {
            self.done_actions += 1;
            add(&mut self.key_points, done);
        } else if let Some(open) = ticked(text, ' ') {
            self.open_actions += 1;
            add(&mut self.action_items, open);
        } else if is_action(text) {
            self.open_actions += 1;
            add(&mut self.action_items, text);
        } else if let Some(point) = item {
            add(&mut self.key_points, point);
        }
    }
}

fn add(list: &mut Vec<String>, text: &str) {
    let text: String = text.trim().chars().take(LINE_CHARS_MAX).collect();
    if !text.is_empty() && list.len() < ITEMS_MAX && !list.contains(&text) {
        list.push(text);
    }
}

/// What follows `-`, `*`, `+` or `1.` at the beginning of a line.
fn bullet(line: &str) -> Option<&str> {
    let rest = line.strip_prefix(['-', '*', '+']).or_else(|| {
        let digits = line.find(|c: char| !c.is_ascii_digit()).filter(|at| (1..=3).contains(at))?;
        line[digits..].strip_prefix(['.', ')'])
    })?;
    rest.starts_with(char::is_whitespace).then(|| rest.trim())
}

fn ticked(text: &str, mark: char) -> Option<&str> {
    text.strip_prefix('[')?.strip_prefix(mark)?.strip_prefix(']').map(str::trim)
}

fn is_action(text: &str) -> bool {
    let word: String = text.chars().take_while(|c| c.is_ascii_alphabetic()).collect();
    text[word.len()..].starts_with(':') && ACTIONS.contains(&word.to_ascii_lowercase().as_str())
}

/// Names after an @ that does not stand in a word, as in an e-mail address.
fn mentioned(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices('@').filter_map(|(at, _)| {
        let before = line[..at].chars().next_back();
        let rest = &line[at + 1..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let free = !before.is_some_and(char::is_alphanumeric);
        (free && (1..=64).contains(&end)).then(|| &rest[..end])
    })
}

fn quoted(line: &str) -> impl Iterator<Item = &str> {
    let parts: Vec<&str> = line.split('`').collect();
    // The last part has no closing backtick.
    let closed = parts.len().saturating_sub(1);
    let inside: Vec<&str> = parts[..closed].iter().skip(1).step_by(2).copied().collect();
    inside.into_iter().filter(|code| code.contains(['/', '.', ':', '_']) && !code.contains(char::is_whitespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_summed_up_by_its_marks() {
        let first = "Plan:\n- split `src/api.rs`\n- [ ] write tests\n- [x] agree on names\n1. then deploy\nTODO: tell @BlueLake";
        let second = "@BlueLake @GreenCastle: fine. mail a@b.c\naction: Review `a b` and `x::y`\n- split `src/api.rs`";
        let summary = summarize([Said { from: "GreenCastle", body: first }, Said { from: "BlueLake", body: second }]);
        assert_eq!(summary.participants, ["BlueLake", "GreenCastle"]);
        assert_eq!(summary.key_points, ["split `src/api.rs`", "agree on names", "then deploy"]);
        assert_eq!(summary.action_items, ["write tests", "TODO: tell @BlueLake", "action: Review `a b` and `x::y`"]);
        assert_eq!((summary.done_actions, summary.open_actions), (1, 3));
        assert_eq!(summary.mentions, [("BlueLake".to_owned(), 2), ("GreenCastle".to_owned(), 1)]);
        assert_eq!(summary.code_references, ["src/api.rs", "x::y"]);
    }

    #[test]
    fn everything_has_a_bound() {
        let lines: String = (0..1_000).map(|n| format!("- point {n} {} @Name{n} `a/{n}`\n", "x".repeat(500))).collect();
        let names: Vec<String> = (0..100).map(|n| format!("Agent{n}")).collect();
        let summary = summarize(names.iter().map(|name| Said { from: name, body: &lines }));
        assert_eq!(summary.participants.len(), PARTICIPANTS_MAX);
        for list in [&summary.key_points, &summary.code_references] {
            assert_eq!(list.len(), ITEMS_MAX);
            assert!(list.iter().all(|line| line.chars().count() <= LINE_CHARS_MAX));
        }
        assert_eq!(summary.mentions.len(), ITEMS_MAX);
        assert_eq!(summarize([]), Summary::default());
    }
}
