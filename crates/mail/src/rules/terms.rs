//! The words of a message as both engines index them.
//!
//! Texts are cut into words here and not by the engines, whose own rules differ: a word is a run of letters and digits in
//! lower case, and each character of a script that is written without spaces is a word of its own. Every word
//! is stored with its tenant and its project in front (`7p12xhello`), so that a term's list has the messages of one
//! project alone: others' messages change neither what is found, nor its order, nor the time it takes.
//!
//! Beside its words a message has marks, in the same form: who may find it, who sent it, its thread, its importance.
//! A word has an `x` after the project, a mark another letter, so no text can be taken for a mark.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use sha2::{Digest, Sha256};
use waybill_kernel::{Tenant, hex};

/// What is indexed of one message, in bytes: its subject, then as much of its body.
pub const INDEXED_BYTES_MAX: usize = 65_536;
/// Words of one message. PostgreSQL knows places up to 16,383 in a text.
const WORDS_MAX: usize = 16_000;
/// Different words of one message, in bytes, each as long as it is stored and once for every project. A tsvector has at most 1 MiB
/// with the marks and with the places of words, and a message whose index is refused could not be sent.
const TERMS_BYTES_MAX: usize = 512 << 10;
/// A longer word is known by its beginning, in characters.
pub const WORD_CHARS_MAX: usize = 64;
/// Occurrences of one word in a message that count, which is as many as PostgreSQL keeps.
const OCCURRENCES_MAX: u32 = 255;
/// What marks keep of a digest, in bytes.
const MARK_BYTES: usize = 12;

/// The words of a text, in order.
pub fn words(text: &str) -> impl Iterator<Item = String> {
    let mut rest = text.chars().peekable();
    std::iter::from_fn(move || {
        while rest.next_if(|c| !c.is_alphanumeric()).is_some() {}
        let first = rest.next()?;
        let mut word = String::new();
        add(&mut word, first);
        if !is_unspaced(first) {
            let mut chars = 1;
            while let Some(c) = rest.next_if(|c| c.is_alphanumeric() && !is_unspaced(*c)) {
                chars += 1;
                if chars <= WORD_CHARS_MAX {
                    add(&mut word, c);
                }
            }
        }
        Some(word)
    })
}

fn add(word: &mut String, c: char) {
    // Lower case may bring a combining mark along, which is no letter.
    word.extend(c.to_lowercase().filter(|c| c.is_alphanumeric()));
}

/// Scripts without spaces between words: kana, Han, and the ideographs beyond the basic plane.
fn is_unspaced(c: char) -> bool {
    matches!(c, '\u{3040}'..='\u{30FF}' | '\u{3400}'..='\u{4DBF}' | '\u{4E00}'..='\u{9FFF}' | '\u{F900}'..='\u{FAFF}' | '\u{20000}'..='\u{3FFFF}')
}

/// One project of one tenant: what every term begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pub tenant: Tenant,
    pub project: i64,
}

impl Space {
    fn term(self, kind: char, rest: &str) -> String {
        format!("{}p{}{kind}{rest}", self.tenant.0, self.project)
    }

    pub fn word(self, word: &str) -> String {
        self.term('x', word)
    }

    /// On every message: for those who may find all.
    pub fn everybody(self) -> String {
        self.term('z', "")
    }

    /// On every message that an agent of this principal sent or received.
    pub fn party(self, principal: &str) -> String {
        self.term('y', &digest(principal))
    }

    pub fn sender(self, agent: i64) -> String {
        self.term('s', &agent.to_string())
    }

    pub fn thread(self, thread: &str) -> String {
        self.term('t', &digest(thread))
    }

    pub fn importance(self, importance: &str) -> String {
        self.term('i', importance)
    }

    /// In the place of a word that has occurred too often: keeps the places of the others and is never asked for.
    fn filler(self) -> String {
        self.term('w', "")
    }
}

fn digest(text: &str) -> String {
    hex::encode(&Sha256::digest(text.as_bytes())[..MARK_BYTES])
}

/// One message as it goes into the index.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Indexed {
    pub marks: Vec<String>,
    subject: Vec<String>,
    body: Vec<String>,
}

impl Indexed {
    /// For those who look in one of these projects: that of its sender and those of its recipients.
    pub fn new(spaces: &[Space], marks: Vec<String>, subject: &str, body: &str) -> Self {
        let subject = beginning(subject, INDEXED_BYTES_MAX);
        let body = beginning(body, INDEXED_BYTES_MAX - subject.len());
        let most = WORDS_MAX / spaces.len().max(1);
        let bytes_most = TERMS_BYTES_MAX / spaces.len().max(1);
        let mut indexed = Self { marks, ..Self::default() };
        for space in spaces {
            let mut seen: HashMap<String, u32> = HashMap::new();
            let mut bytes = 0;
            // None ends the project's words, those of the body as well where the subject's were too many.
            let mut term = |word: String| {
                let term = space.word(&word);
                let count = seen.entry(word).or_default();
                *count += 1;
                bytes += if *count == 1 { term.len() } else { 0 };
                let shown = if *count > OCCURRENCES_MAX { space.filler() } else { term };
                (bytes <= bytes_most).then_some(shown)
            };
            let before = indexed.subject.len();
            indexed.subject.extend(words(subject).take(most).map_while(&mut term));
            let left = most - (indexed.subject.len() - before);
            indexed.body.extend(words(body).take(left).map_while(&mut term));
        }
        indexed
    }

    /// The texts of FTS5's columns: marks, subject, body.
    pub fn columns(&self) -> [String; 3] {
        [self.marks.join(" "), self.subject.join(" "), self.body.join(" ")]
    }

    /// As PostgreSQL reads a tsvector: the subject's words have the weight A, the body's B. A gap between the two keeps a
    /// phrase from beginning in one and ending in the other.
    pub fn tsvector(&self) -> String {
        let mut positions: BTreeMap<&str, Vec<(usize, char)>> = BTreeMap::new();
        for mark in &self.marks {
            positions.entry(mark).or_default();
        }
        let gap = self.subject.len() + 1;
        let subject = self.subject.iter().enumerate().map(|(at, term)| (term, at + 1, 'A'));
        let body = self.body.iter().enumerate().map(|(at, term)| (term, at + 1 + gap, 'B'));
        for (term, position, weight) in subject.chain(body) {
            positions.entry(term).or_default().push((position, weight));
        }
        let mut text = String::new();
        for (term, positions) in positions {
            let _ = write!(text, "'{term}'");
            for (nth, (position, weight)) in positions.into_iter().enumerate().take(OCCURRENCES_MAX as usize) {
                let _ = write!(text, "{}{position}{weight}", if nth == 0 { ':' } else { ',' });
            }
            text.push(' ');
        }
        text
    }
}

/// At most so many bytes, cut before a character and not within one.
fn beginning(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: Space = Space { tenant: Tenant(7), project: 12 };

    fn all(text: &str) -> Vec<String> {
        words(text).collect()
    }

    #[test]
    fn words_are_runs_of_letters_and_digits_in_lower_case() {
        assert_eq!(
            all("Fix POL-358: snake_case, Ünsal's x2!"),
            ["fix", "pol", "358", "snake", "case", "ünsal", "s", "x2"]
        );
        assert_eq!(all("  ..\u{0}-- "), [""; 0]);
        assert_eq!(all("日本go語"), ["日", "本", "go", "語"]);
        assert_eq!(all("İ"), ["i"]);
        assert_eq!(all(&"a".repeat(500)), ["a".repeat(WORD_CHARS_MAX)]);
    }

    #[test]
    fn no_text_is_taken_for_a_mark() {
        let text = [SPACE.everybody(), SPACE.party("agent:a"), SPACE.sender(3)].join(" ");
        let indexed = Indexed::new(&[SPACE], Vec::new(), &text, &text);
        for term in indexed.subject.iter().chain(&indexed.body) {
            assert!(term.starts_with("7p12x7p12"), "{term}");
        }
    }

    #[test]
    fn a_message_is_written_for_both_engines() {
        let indexed = Indexed::new(&[SPACE], vec![SPACE.everybody()], "Hello World", "hello there");
        assert_eq!(indexed.columns(), ["7p12z", "7p12xhello 7p12xworld", "7p12xhello 7p12xthere"].map(str::to_owned));
        assert_eq!(indexed.tsvector(), "'7p12xhello':1A,4B '7p12xthere':5B '7p12xworld':2A '7p12z' ");
    }

    #[test]
    fn a_message_to_many_projects_has_room_in_one_row() {
        let spaces: Vec<Space> = (0..16).map(|project| Space { tenant: Tenant(7), project }).collect();
        let word = |n: usize| format!("{n:0>64}");
        let body = (0..1_000).map(word).collect::<Vec<_>>().join(" ");
        let indexed = Indexed::new(&spaces, Vec::new(), "Many", &body);
        let bytes: usize = indexed.subject.iter().chain(&indexed.body).map(String::len).sum();
        assert!(bytes <= TERMS_BYTES_MAX, "{bytes}");
        for space in spaces {
            let has = |word: &str| indexed.subject.iter().chain(&indexed.body).any(|term| *term == space.word(word));
            assert_eq!([has("many"), has(&word(400)), has(&word(600))], [true, true, false], "as much for each");
        }
    }

    #[test]
    fn a_large_message_is_bounded() {
        let body = "é ".repeat(100_000);
        let indexed = Indexed::new(&[SPACE], Vec::new(), "s", &body);
        assert!(indexed.body.len() < WORDS_MAX);
        let counted = |term: &str| indexed.body.iter().filter(|word| *word == term).count();
        assert_eq!(counted("7p12xé"), OCCURRENCES_MAX as usize);
        let many: String = (0..60_000).map(|n| format!("{} ", n % 10)).collect();
        let indexed = Indexed::new(&[SPACE], Vec::new(), "", &many);
        assert_eq!(indexed.body.len(), WORDS_MAX);
        let late = format!("{} needle", "x".repeat(INDEXED_BYTES_MAX));
        assert!(!Indexed::new(&[SPACE], Vec::new(), "", &late).body.contains(&SPACE.word("needle")));
    }
}
