//! Digests of threads, for people: the beginning of each message, with the way to the whole one.
//!
//! A page holds the messages of a thread within a hundred ids, in the order of their ids, each under a marker with its id. Adding a message
//! that is there already changes nothing, and the order in which they are added does not matter: whoever writes a page again from the
//! database gets the same bytes.

use std::collections::BTreeMap;

use super::Message;
use crate::error::Result;
use crate::names::ArchivePath;

/// Characters of a body that a digest shows.
const PREVIEW_CHARS: usize = 1_200;
const MARK: &str = "<!-- message ";
const MARK_END: &str = " -->";

/// A page of a digest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    entries: BTreeMap<i64, DigestEntry>,
}

/// A message in a digest, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DigestEntry(String);

impl DigestEntry {
    /// `canonical` is where the whole message is.
    pub fn of(message: &Message, canonical: &ArchivePath) -> Self {
        let preview: String = message.body.chars().take(PREVIEW_CHARS).collect();
        let cut = if preview.len() < message.body.len() { "\n\n…" } else { "" };
        // A body cannot end its entry: its own lines that look like a marker are set apart.
        let preview = preview.replace(MARK, "<!-- \u{200b}message ");
        let subject = message.subject.replace(['\n', '\r'], " ").replace(MARK, "<!-- \u{200b}message ");
        let to = message.shown_recipients();
        Self(format!(
            "### {subject}\n\n## {} — {} → {to}\n\n[View canonical](/{canonical})\n\n{preview}{cut}\n\n---\n",
            message.created, message.from
        ))
    }
}

impl Digest {
    pub fn put(&mut self, id: i64, entry: DigestEntry) {
        self.entries.insert(id, entry);
    }

    pub fn ids(&self) -> impl Iterator<Item = i64> {
        self.entries.keys().copied()
    }

    pub fn write(&self, thread: &str) -> Result<Vec<u8>> {
        let mut text = format!("# Thread {thread}\n");
        for (id, entry) in &self.entries {
            text.push_str(&format!("\n{MARK}{id}{MARK_END}\n{}", entry.0));
        }
        Ok(text.into_bytes())
    }

    /// What is not under a marker is not ours and is left out.
    pub fn read(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let mut entries = BTreeMap::new();
        for part in text.split(&format!("\n{MARK}")).skip(1) {
            let Some((id, entry)) = part.split_once(&format!("{MARK_END}\n")) else { continue };
            if let Ok(id) = id.parse() {
                entries.insert(id, DigestEntry(entry.to_owned()));
            }
        }
        Self { entries }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use waybill_kernel::Time;

    use super::*;
    use crate::layout::canonical_path;

    fn message(id: i64, body: &str) -> (i64, DigestEntry) {
        let message = Message {
            id,
            from: "GreenCastle".to_owned(),
            from_project: None,
            to: vec!["BlueLake".to_owned()],
            cc: vec![],
            bcc: vec!["RedStone".to_owned()],
            subject: "Plan\nx".to_owned(),
            thread_id: Some("PLAN-1".to_owned()),
            reply_to: None,
            importance: "high".to_owned(),
            ack_required: false,
            intro: false,
            created: Time::from_micros(1_794_854_601_001_411),
            project: "/p".to_owned(),
            project_slug: "p".to_owned(),
            attachments: vec![],
            body: body.to_owned(),
        };
        let path = canonical_path(id, message.created, &message.subject).unwrap();
        (id, DigestEntry::of(&message, &path))
    }

    proptest! {
        #[test]
        fn a_page_comes_back_whatever_its_messages_say(bodies in proptest::collection::vec("(\\PC|\\n|<!-- message 1 -->){0,30}", 1..6)) {
            let mut page = Digest::default();
            for (id, body) in bodies.iter().enumerate() {
                let (id, entry) = message(i64::try_from(id).unwrap(), body);
                page.put(id, entry);
            }
            let written = page.write("PLAN-1").unwrap();
            prop_assert_eq!(&Digest::read(&written), &page);
        }
    }

    #[test]
    fn order_does_not_matter_and_twice_is_once() {
        let all: Vec<_> = (1..5).map(|id| message(id, "body")).collect();
        let (mut one, mut two) = (Digest::default(), Digest::default());
        all.iter().cloned().for_each(|(id, entry)| one.put(id, entry));
        all.iter().rev().chain(&all).cloned().for_each(|(id, entry)| two.put(id, entry));
        assert_eq!(one.write("x").unwrap(), two.write("x").unwrap());
    }

    #[test]
    fn secret_recipients_are_not_told() {
        let (_, entry) = message(1, &"ä".repeat(3_000));
        assert!(!entry.0.contains("RedStone"));
        assert!(entry.0.contains("GreenCastle → BlueLake"));
        assert!(entry.0.chars().count() < 1_500);
    }
}
