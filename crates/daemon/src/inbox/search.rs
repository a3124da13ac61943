//! Full text over the inbox.
//!
//! # Contract
//! What FTS5 gets holds nothing but quoted words and the star of a begun one, so no query makes it fail.

use waybill_kernel::{Error, Mode, Result};
use waybill_store::{Ctx, Tx, Value, Work};

use super::message::{Message, columns};

/// A query's text, in bytes.
const QUERY_BYTES_MAX: usize = 1_024;
/// Words of one query.
const WORDS_MAX: usize = 32;
/// Messages of one answer.
const FOUND_MAX: usize = 100;

pub(super) struct Search {
    expression: String,
    limit: i64,
}

impl Search {
    /// None where there is no word to look for.
    pub(super) fn read(query: &str, limit: usize) -> Result<Option<Self>> {
        if query.len() > QUERY_BYTES_MAX {
            let message = format!("`q` has {} bytes; at most {QUERY_BYTES_MAX} are taken.", query.len());
            return Err(Error::invalid(message));
        }
        if !(1..=FOUND_MAX).contains(&limit) {
            return Err(Error::invalid(format!("`limit` is {limit}; it must be from 1 to {FOUND_MAX}.")));
        }
        let words: Vec<String> = query.split_whitespace().filter_map(term).collect();
        if words.len() > WORDS_MAX {
            return Err(Error::invalid(format!("`q` has {} words; at most {WORDS_MAX} are taken.", words.len())));
        }
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        Ok((!words.is_empty()).then(|| Self { expression: words.join(" AND "), limit }))
    }
}

/// One word, or one that is only begun. FTS5 would take one without a letter or digit for something that nothing matches.
fn term(word: &str) -> Option<String> {
    let (word, star) = word.strip_suffix('*').map_or((word, ""), |word| (word, "*"));
    word.chars()
        .any(char::is_alphanumeric)
        .then(|| format!("\"{}\"{star}", word.replace('"', "\"\"").replace('\0', " ")))
}

impl Work for Search {
    type Output = Vec<Message>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    /// The newest first.
    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<Message>> {
        const FIND: &str = concat!(
            "SELECT ",
            columns!(),
            " FROM inbox_fts JOIN inbox ON inbox.id = inbox_fts.rowid WHERE inbox_fts MATCH $1 \
             ORDER BY inbox_fts.rowid DESC LIMIT $2"
        );
        let rows = tx.query(FIND, &[Value::from(&self.expression), self.limit.into()]).await?;
        rows.iter().map(Message::read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_quoted_words_reaches_the_engine() {
        let written = |query: &str| Search::read(query, 10).unwrap().map(|search| search.expression);
        for (query, expression) in [
            ("deploy", Some("\"deploy\"")),
            ("two words", Some("\"two\" AND \"words\"")),
            ("begun*", Some("\"begun\"*")),
            ("a\"b NEAR( OR NOT", Some("\"a\"\"b\" AND \"NEAR(\" AND \"OR\" AND \"NOT\"")),
            ("body:x -y ^z", Some("\"body:x\" AND \"-y\" AND \"^z\"")),
            ("", None),
            ("* ! \"", None),
        ] {
            assert_eq!(written(query).as_deref(), expression, "{query}");
        }
        assert!(Search::read(&"x ".repeat(33), 10).is_err());
        assert!(Search::read(&"x".repeat(1_025), 10).is_err());
        assert!(Search::read("x", 0).is_err() && Search::read("x", 101).is_err());
    }
}
