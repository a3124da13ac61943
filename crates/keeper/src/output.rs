//! What a program says on stdout and stderr, as much of it as is kept.

use tokio::io::{AsyncRead, AsyncReadExt};

const READ_BYTES: usize = 8 << 10;
/// Of each stream of a program that failed, as JSON: what it said last tells why, and a failure must fit into its receipt.
pub const LAST_WORDS_BYTES_MAX: usize = 8 << 10;

pub struct Output {
    /// The first of it, `max` at most.
    bytes: Vec<u8>,
    /// The last of what came behind those.
    end: Vec<u8>,
    max: usize,
    truncated: bool,
}

impl Output {
    pub fn up_to(max: usize) -> Self {
        Self { bytes: Vec::new(), end: Vec::new(), max, truncated: false }
    }

    /// All there is, of which the first `max` bytes and the last words are kept: a program that writes more must not hang
    /// on a full pipe.
    pub async fn read(&mut self, stream: Option<impl AsyncRead + Unpin>) {
        let Some(mut stream) = stream else { return };
        let mut chunk = vec![0; READ_BYTES];
        while let Ok(read @ 1..) = stream.read(&mut chunk).await {
            self.take(&chunk[..read]);
        }
    }

    fn take(&mut self, chunk: &[u8]) {
        let (kept, further) = chunk.split_at(chunk.len().min(self.max - self.bytes.len()));
        self.bytes.extend_from_slice(kept);
        self.truncated |= !further.is_empty();
        self.end.extend_from_slice(further);
        let surplus = self.end.len().saturating_sub(self.last_words_max());
        self.end.drain(..surplus);
    }

    fn last_words_max(&self) -> usize {
        self.max.min(LAST_WORDS_BYTES_MAX)
    }

    /// Its text, and whether there was more.
    pub fn told(&self) -> (String, bool) {
        (text(&self.bytes).0, self.truncated)
    }

    pub fn last_words(&self) -> (String, bool) {
        let (all, _) = text(&[&self.bytes[..], &self.end[..]].concat());
        let words = end_of(&all, self.last_words_max());
        (words.to_owned(), self.truncated || words.len() < all.len())
    }
}

/// The end that takes at most `max` bytes as JSON, without the quotes.
fn end_of(text: &str, max: usize) -> &str {
    let mut left = max;
    let fits = |(_, char): &(usize, char)| {
        let bytes = match char {
            '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
            '\0'..='\u{1f}' => 6,
            _ => char.len_utf8(),
        };
        let fits = bytes <= left;
        left = left.saturating_sub(bytes);
        fits
    };
    let first = text.char_indices().rev().take_while(fits).last();
    &text[first.map_or(text.len(), |(at, _)| at)..]
}

/// Bytes as text. A NUL is no text to most who store it, so it is replaced like everything else that is not UTF-8; false when
/// anything was.
pub fn text(bytes: &[u8]) -> (String, bool) {
    let text = String::from_utf8_lossy(bytes).replace('\0', "\u{fffd}");
    let exact = text.as_bytes() == bytes;
    (text, exact)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_measured_as_json_and_cut_between_characters() {
        for (text, max, end) in
            [("abc", 2, "bc"), ("abc", 9, "abc"), ("aää", 3, "ä"), ("a\n", 2, "\n"), ("a\u{1}", 5, ""), ("", 3, "")]
        {
            assert_eq!(end_of(text, max), end, "{text:?}");
        }
    }
}
