//! Full text over the inbox.
//!
//! # Contract
//! What FTS5 gets holds nothing but quoted words and the star of a begun one, so no query makes it fail.

use waybill_kernel::{Error, Mode, Result, cursor};
use waybill_store::{Ctx, Tx, Value, Work};

use super::message::{Message, columns};
use super::page::Page;

/// A query's text, in bytes.
const QUERY_BYTES_MAX: usize = 1_024;
/// Words of one query.
const WORDS_MAX: usize = 32;
/// Messages of one answer.
const FOUND_MAX: usize = 100;

#[derive(Debug)]
pub(super) struct Search {
    query: String,
    expression: String,
    limit: usize,
    /// Only messages that came before the one with this id.
    before: i64,
}

/// What a cursor is only valid with.
fn scope(query: &str) -> [&[u8]; 2] {
    [b"inbox search", query.as_bytes()]
}

impl Search {
    /// None where there is no word to look for. With a cursor the answer goes on where an earlier one for the same words ended.
    pub(super) fn read(query: &str, limit: usize, cursor: Option<&str>) -> Result<Option<Self>> {
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
        let before = match cursor {
            None => i64::MAX,
            Some(text) => {
                let bytes = cursor::decode(&scope(query), text)?;
                bytes.try_into().map(i64::from_be_bytes).map_err(|_| cursor::refused())?
            }
        };
        let found = || Self { query: query.to_owned(), expression: words.join(" AND "), limit, before };
        Ok((!words.is_empty()).then(found))
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
    type Output = Page;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    /// The newest first.
    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Page> {
        const FIND: &str = concat!(
            "SELECT ",
            columns!(),
            " FROM inbox_fts JOIN inbox ON inbox.id = inbox_fts.rowid WHERE inbox_fts MATCH $1 AND inbox_fts.rowid < $2 \
             ORDER BY inbox_fts.rowid DESC LIMIT $3"
        );
        // One more than asked for tells whether there are others.
        let limit = i64::try_from(self.limit).unwrap_or(i64::MAX).saturating_add(1);
        let rows = tx.query(FIND, &[Value::from(&self.expression), self.before.into(), limit.into()]).await?;
        let messages = rows.iter().take(self.limit).map(Message::read).collect::<Result<Vec<_>>>()?;
        let last = messages.last().filter(|_| rows.len() > messages.len());
        let next_cursor = last.map(|last| cursor::encode(&scope(&self.query), &last.id.to_be_bytes()));
        Ok(Page { messages, next_cursor })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_quoted_words_reaches_the_engine() {
        let written = |query: &str| Search::read(query, 10, None).unwrap().map(|search| search.expression);
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
        assert!(Search::read(&"x ".repeat(33), 10, None).is_err());
        assert!(Search::read(&"x".repeat(1_025), 10, None).is_err());
        assert!(Search::read("x", 0, None).is_err() && Search::read("x", 101, None).is_err());
        let cursor = cursor::encode(&scope("x"), &5_i64.to_be_bytes());
        assert_eq!(Search::read("x", 1, Some(&cursor)).unwrap().map(|search| search.before), Some(5));
        assert!(Search::read("y", 1, Some(&cursor)).is_err(), "a cursor of other words");
        assert!(Search::read("x", 1, Some("00")).is_err());
    }
}
