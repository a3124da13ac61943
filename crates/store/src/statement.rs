//! Rewrites a statement for SQLite. Statements are written for PostgreSQL, which takes them as they are.

use crate::lexer::{Piece, pieces};

/// Rows that another transaction is about to change are passed over, and the others kept for this one. SQLite's writer
/// is alone and has nobody to pass over.
const ROW_LOCK: &str = "FOR UPDATE SKIP LOCKED";

/// A feed over all tenants. On SQLite `xact` is 0 in every row and `seq` is the rowid, so its order needs no index.
const FEED_ORDER: &str = "(xact, seq) > ($1, $2) AND xact < $3 ORDER BY xact, seq";
const FEED_ORDER_SQLITE: &str = "$1 = 0 AND seq > $2 AND $3 > 0 ORDER BY seq";

/// `$n` is a named parameter to SQLite, numbered by first appearance; `?n` keeps its number. A dollar in a string or a
/// comment is no parameter.
pub(crate) fn for_sqlite(sql: &str) -> String {
    let sql = sql.replace(ROW_LOCK, "").replace(FEED_ORDER, FEED_ORDER_SQLITE);
    let mut text = String::with_capacity(sql.len());
    for piece in pieces(&sql) {
        match piece {
            Piece::Code(code) => text.push_str(&code.replace('$', "?")),
            Piece::Quoted(same) | Piece::Comment(same) => text.push_str(same),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_over_all_tenants_follows_the_rowid_on_sqlite() {
        let sql =
            "SELECT xact, seq FROM receipts WHERE (xact, seq) > ($1, $2) AND xact < $3 ORDER BY xact, seq LIMIT $4";
        let text = "SELECT xact, seq FROM receipts WHERE ?1 = 0 AND seq > ?2 AND ?3 > 0 ORDER BY seq LIMIT ?4";
        assert_eq!(for_sqlite(sql), text);
    }

    #[test]
    fn parameters_keep_their_numbers_on_sqlite() {
        assert_eq!(for_sqlite("SELECT $2, $1, $10"), "SELECT ?2, ?1, ?10");
        assert_eq!(for_sqlite("SELECT 1 LIMIT $1 FOR UPDATE SKIP LOCKED"), "SELECT 1 LIMIT ?1 ");
    }

    #[test]
    fn a_dollar_in_a_string_or_a_comment_stays() {
        assert_eq!(for_sqlite("SELECT '$1' || $1 -- $2"), "SELECT '$1' || ?1 -- $2");
        assert_eq!(for_sqlite("SELECT \"$1\", 'it''s $2' /* $3 */, $3"), "SELECT \"$1\", 'it''s $2' /* $3 */, ?3");
    }
}
