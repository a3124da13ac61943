//! Several writes as one statement. Each statement of its own costs PostgreSQL an answer sent and a request read, about as
//! much as running it; as parts of one `WITH` they cost that once.
//!
//! # Contract
//! The parts see the same snapshot and not each other, so no two of them may write to the same row.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, PoisonError, RwLock};

use crate::lexer::{Piece, pieces};

/// What `waybill_nothing_written()` raises (V0021).
pub(super) const NOTHING_WRITTEN: &str = "WB001";

/// More would make plans that take longer than they save.
const PARTS_MAX: usize = 16;

/// Texts that are kept. There are as many as operations write in different ways.
const TEXTS_MAX: usize = 1_024;

/// A statement and the number of its own parameters.
pub(super) type Part = (&'static str, usize);

/// Texts by what they were made of: making one takes as long as a statement takes to be sent.
#[derive(Default)]
pub(super) struct Combined(RwLock<HashMap<Recipe, Option<Arc<str>>>>);

#[derive(PartialEq, Eq, Hash)]
struct Recipe {
    /// Where each text stands, its length and the number of its parameters: texts of the program do not move.
    parts: Vec<(usize, usize, usize)>,
    shared: usize,
    demanded: Vec<usize>,
}

impl Combined {
    /// See [`combine`].
    pub(super) fn text(&self, parts: &[Part], shared: usize, demanded: &[usize]) -> Option<Arc<str>> {
        let which = parts.iter().map(|(sql, params)| (sql.as_ptr() as usize, sql.len(), *params)).collect();
        let recipe = Recipe { parts: which, shared, demanded: demanded.to_vec() };
        if let Some(known) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&recipe) {
            return known.clone();
        }
        let text: Option<Arc<str>> = combine(parts, shared, demanded).map(Arc::from);
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() < TEXTS_MAX {
            known.insert(recipe, text.clone());
        }
        text
    }
}

/// One text for all of them, which answers with one row: what each has written. None when they cannot be combined. The
/// first `shared` parameters are the same for all parts, the others follow each other. A part that is `demanded` and writes
/// no row fails the statement with [`NOTHING_WRITTEN`]; one that does pays for a comparison.
fn combine(parts: &[(&str, usize)], shared: usize, demanded: &[usize]) -> Option<String> {
    let fits = |(sql, _): &(&str, usize)| {
        ["INSERT ", "UPDATE ", "DELETE "].iter().any(|verb| sql.starts_with(verb)) && !sql.contains("RETURNING")
    };
    if !(1..=PARTS_MAX).contains(&parts.len()) || !parts.iter().all(fits) {
        return None;
    }
    let mut text = String::from("WITH ");
    let mut taken = 0;
    for (number, (sql, params)) in parts.iter().enumerate() {
        let comma = if number == 0 { "" } else { ", " };
        let _ = write!(text, "{comma}part{number} AS (");
        renumber(sql, shared, taken, &mut text);
        text.push_str(" RETURNING 1)");
        taken += params;
    }
    for number in 0..parts.len() {
        let verb = if number == 0 { " SELECT" } else { "," };
        let rows = match demanded.contains(&number) {
            true => "CASE count(*) WHEN 0 THEN waybill_nothing_written() ELSE count(*) END",
            false => "count(*)",
        };
        let _ = write!(text, "{verb} (SELECT {rows} FROM part{number})");
    }
    Some(text)
}

/// Copies a statement, its own parameters moved up by `by`.
fn renumber(sql: &str, shared: usize, by: usize, text: &mut String) {
    for piece in pieces(sql) {
        let Piece::Code(code) = piece else {
            text.push_str(piece.text());
            continue;
        };
        let mut parts = code.split('$');
        text.push_str(parts.next().unwrap_or_default());
        for part in parts {
            let digits = part.bytes().take_while(u8::is_ascii_digit).count();
            let number: usize = part[..digits].parse().unwrap_or(0);
            let moved = if number > shared { number + by } else { number };
            let _ = write!(text, "${moved}{}", &part[digits..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_keep_their_parameters_and_share_the_tenant() {
        let parts = [
            ("INSERT INTO a (tenant, x, y) VALUES ($1, $2, $3)", 2),
            ("UPDATE b SET z = $12, y = $2 WHERE tenant = $1", 11),
            ("DELETE FROM c WHERE tenant = $1 AND x = $2", 1),
        ];
        assert_eq!(
            combine(&parts, 1, &[]).unwrap(),
            "WITH part0 AS (INSERT INTO a (tenant, x, y) VALUES ($1, $2, $3) RETURNING 1), \
             part1 AS (UPDATE b SET z = $14, y = $4 WHERE tenant = $1 RETURNING 1), \
             part2 AS (DELETE FROM c WHERE tenant = $1 AND x = $15 RETURNING 1) \
             SELECT (SELECT count(*) FROM part0), (SELECT count(*) FROM part1), (SELECT count(*) FROM part2)"
        );
        let own = [("DELETE FROM a WHERE x = $1", 1), ("DELETE FROM b WHERE x = $1", 1)];
        let demanded = "(SELECT count(*) FROM part0), \
                        (SELECT CASE count(*) WHEN 0 THEN waybill_nothing_written() ELSE count(*) END FROM part1)";
        assert!(combine(&own, 0, &[1]).unwrap().ends_with(demanded));
        assert!(combine(&own, 0, &[]).unwrap().contains("DELETE FROM b WHERE x = $2 RETURNING 1"));
    }

    #[test]
    fn a_dollar_in_a_string_or_a_comment_is_no_parameter() {
        let parts = [("DELETE FROM a WHERE x = $1", 1), ("UPDATE b SET y = '$1' || $1 /* $1 */ WHERE z = $2", 2)];
        let text = combine(&parts, 0, &[]).unwrap();
        assert!(text.contains("part1 AS (UPDATE b SET y = '$1' || $2 /* $1 */ WHERE z = $3 RETURNING 1)"), "{text}");
    }

    #[test]
    fn none_many_and_those_that_answer_are_not_combined() {
        let one = ("DELETE FROM a WHERE x = $1", 1);
        assert!(combine(&[], 0, &[]).is_none());
        assert!(combine(&[one; PARTS_MAX + 1], 0, &[]).is_none());
        assert!(combine(&[one, ("SELECT 1", 0)], 0, &[]).is_none());
        assert!(combine(&[one, ("DELETE FROM a WHERE x = $1 RETURNING y", 1)], 0, &[]).is_none());
    }
}
