//! XML as it is written: elements without attributes, and text in them.

/// For what XML 1.0 has no way to write, not even as a reference. No message holds such a character; a name that a client
/// has made up may.
const REPLACEMENT: &str = "\u{FFFD}";
/// Bytes that are looked at together. Most texts have nothing to escape, and blocks of a fixed size are compared by the
/// vector, not by the byte.
const BLOCK_BYTES: usize = 64;

#[derive(Default)]
pub(super) struct Xml {
    out: Vec<u8>,
}

impl Xml {
    /// Of what SQS has as names: they are not escaped.
    pub(super) fn open(&mut self, name: &str) {
        self.out.push(b'<');
        self.out.extend_from_slice(name.as_bytes());
        self.out.push(b'>');
    }

    /// With the namespace of SQS.
    pub(super) fn open_document(&mut self, name: &str) {
        self.out.push(b'<');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b" xmlns=\"http://queue.amazonaws.com/doc/2012-11-05/\">");
    }

    pub(super) fn close(&mut self, name: &str) {
        self.out.extend_from_slice(b"</");
        self.out.extend_from_slice(name.as_bytes());
        self.out.push(b'>');
    }

    pub(super) fn element(&mut self, name: &str, text: &str) {
        self.open(name);
        self.text(text);
        self.close(name);
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.out
    }

    fn text(&mut self, text: &str) {
        let bytes = text.as_bytes();
        self.out.reserve(bytes.len());
        let mut written = 0;
        for (nth, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
            if !block.iter().fold(false, |found, byte| found | is_special(*byte)) {
                continue;
            }
            let start = nth * BLOCK_BYTES;
            for at in start..start + block.len() {
                if let Some((length, instead)) = escape(&bytes[at..]) {
                    self.out.extend_from_slice(&bytes[written..at]);
                    self.out.extend_from_slice(instead.as_bytes());
                    written = at + length;
                }
            }
        }
        self.out.extend_from_slice(&bytes[written..]);
    }
}

/// What is written for the character with which `bytes` begin, and how long that is, unless it stands for itself.
fn escape(bytes: &[u8]) -> Option<(usize, &'static str)> {
    let first = *bytes.first()?;
    if !is_special(first) {
        return None;
    }
    match bytes {
        [b'&', ..] => Some((1, "&amp;")),
        [b'<', ..] => Some((1, "&lt;")),
        [b'>', ..] => Some((1, "&gt;")),
        // Readers of XML make a line feed of a carriage return that stands for itself.
        [b'\r', ..] => Some((1, "&#xD;")),
        // U+FFFE and U+FFFF.
        [0xEF, 0xBF, 0xBE | 0xBF, ..] => Some((3, REPLACEMENT)),
        [0xEF, ..] => None,
        _ => Some((1, REPLACEMENT)),
    }
}

/// Without branches, for the sake of the vectors. 0xEF begins U+F000 to U+FFFF.
const fn is_special(byte: u8) -> bool {
    let control = (byte < b' ') & (byte != b'\t') & (byte != b'\n');
    control | (byte == b'&') | (byte == b'<') | (byte == b'>') | (byte == 0xEF)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(text: &str) -> String {
        let mut xml = Xml::default();
        xml.text(text);
        String::from_utf8(xml.into_bytes()).unwrap()
    }

    /// What a reader of XML makes of it.
    fn read_back(text: &str) -> String {
        let mut xml = Xml::default();
        xml.open_document("A");
        xml.element("B", text);
        xml.close("A");
        let xml = String::from_utf8(xml.into_bytes()).unwrap();
        let document = roxmltree::Document::parse(&xml).unwrap();
        document.root_element().first_element_child().unwrap().text().unwrap_or_default().to_owned()
    }

    fn as_allowed(text: &str) -> String {
        let legal = |c: char| waybill_queues::rules::contents::is_allowed(c);
        text.chars().map(|c| if legal(c) { c } else { '\u{FFFD}' }).collect()
    }

    #[test]
    fn text_is_escaped() {
        for (text, expected) in [
            ("", ""),
            ("plain \"text\"'s\ttab\n", "plain \"text\"'s\ttab\n"),
            ("<a href=\"x\">&amp;</a>", "&lt;a href=\"x\"&gt;&amp;amp;&lt;/a&gt;"),
            ("]]>", "]]&gt;"),
            ("a\r\nb", "a&#xD;\nb"),
            ("\u{0}\u{8}\u{B}\u{1F}", "\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}"),
            ("\u{FFFD}\u{FFFE}\u{FFFF}\u{FEFF}ｆ", "\u{FFFD}\u{FFFD}\u{FFFD}\u{FEFF}ｆ"),
            ("\u{7F}\u{85}é😀", "\u{7F}\u{85}é😀"),
        ] {
            assert_eq!(written(text), expected, "{text:?}");
            assert_eq!(read_back(text), as_allowed(text), "{text:?}");
        }
    }

    #[test]
    fn every_place_of_a_block_is_looked_at() {
        for at in 0..3 * BLOCK_BYTES {
            for length in [at + 1, at + 2, 3 * BLOCK_BYTES + 7] {
                let mut text = vec!['a'; length];
                text[at] = '&';
                let text: String = text.into_iter().collect();
                assert_eq!(written(&text), text.replace('&', "&amp;"), "{at} of {length}");
            }
        }
    }

    #[test]
    fn a_large_body_is_written_once_and_whole() {
        let body = "ab<\r>".repeat(200_000);
        let text = written(&body);
        assert_eq!(text.len(), 200_000 * "ab&lt;&#xD;&gt;".len());
        assert_eq!(read_back(&body), body);
    }

    proptest! {
        #[test]
        fn any_text_comes_back(text in any::<String>()) {
            prop_assert_eq!(read_back(&text), as_allowed(&text));
        }

        #[test]
        fn text_with_much_to_escape_comes_back(text in "[<>&\r\n\t\u{0}\u{FFFE}\u{FFFD}a😀]{0,200}") {
            prop_assert_eq!(read_back(&text), as_allowed(&text));
        }
    }
}
