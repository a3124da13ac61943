//! The text of a statement cut into what is code and what only looks like it: a `$1`, a semicolon or a table's name inside a
//! string or a comment means nothing.
//!
//! It knows what our statements use, which both engines read alike: `'strings'`, `"names"`, `-- comments`, `/* comments */`
//! and, for the bodies of PostgreSQL's functions in migrations, `$$ … $$` and `$tag$ … $tag$`.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    Code(&'a str),
    /// With its quotes, whichever they are.
    Quoted(&'a str),
    Comment(&'a str),
}

impl<'a> Piece<'a> {
    pub(crate) const fn text(self) -> &'a str {
        match self {
            Piece::Code(text) | Piece::Quoted(text) | Piece::Comment(text) => text,
        }
    }
}

/// Every byte of the text, in order. What is never closed reaches to the end.
pub(crate) fn pieces(sql: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = sql;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, after) = match opening(rest) {
            Some(opening) => opening.cut(rest),
            None => {
                let mut ends = rest.char_indices().skip(1).map(|(at, _)| at);
                let end = ends.find(|at| opening(&rest[*at..]).is_some() && is_apart(rest, *at));
                let (code, after) = rest.split_at(end.unwrap_or(rest.len()));
                (Piece::Code(code), after)
            }
        };
        rest = after;
        Some(piece)
    })
}

/// `a$$` is a name with dollars in it, not a name and a quote.
fn is_apart(text: &str, at: usize) -> bool {
    let before = text[..at].chars().next_back();
    !text[at..].starts_with('$') || !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$')
}

/// How a piece begins that is not code, and what ends it.
struct Opening<'a> {
    length: usize,
    closing: &'a str,
    is_comment: bool,
}

fn opening(text: &str) -> Option<Opening<'_>> {
    let quoted = |length, closing| Some(Opening { length, closing, is_comment: false });
    let comment = |length, closing| Some(Opening { length, closing, is_comment: true });
    match text.as_bytes() {
        [b'\'', ..] => quoted(1, "'"),
        [b'"', ..] => quoted(1, "\""),
        [b'-', b'-', ..] => comment(2, "\n"),
        [b'/', b'*', ..] => comment(2, "*/"),
        [b'$', ..] => {
            let tag = text[1..].find('$')? + 2;
            let name = &text[1..tag - 1];
            let is_name = !name.starts_with(|c: char| c.is_ascii_digit())
                && name.chars().all(|c| c.is_alphanumeric() || c == '_');
            if is_name { quoted(tag, &text[..tag]) } else { None }
        }
        _ => None,
    }
}

impl Opening<'_> {
    /// A quote that is written twice is one inside; seen as two strings side by side it means the same here.
    fn cut<'a>(&self, text: &'a str) -> (Piece<'a>, &'a str) {
        let end = text[self.length..].find(self.closing).map_or(text.len(), |at| {
            // The line's end is not the comment's.
            self.length + at + if self.closing == "\n" { 0 } else { self.closing.len() }
        });
        let (piece, rest) = text.split_at(end);
        (if self.is_comment { Piece::Comment(piece) } else { Piece::Quoted(piece) }, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Piece::{Code, Comment, Quoted};

    fn cut(sql: &str) -> Vec<Piece<'_>> {
        let all: Vec<_> = pieces(sql).collect();
        assert_eq!(all.iter().map(|piece| piece.text()).collect::<String>(), sql, "a byte was lost or doubled");
        all
    }

    #[test]
    fn strings_names_and_comments_are_told_from_code() {
        assert_eq!(cut(""), []);
        assert_eq!(cut("SELECT $1"), [Code("SELECT $1")]);
        assert_eq!(cut("a '$1; -- b' c"), [Code("a "), Quoted("'$1; -- b'"), Code(" c")]);
        assert_eq!(cut("'it''s $1'"), [Quoted("'it'"), Quoted("'s $1'")]);
        assert_eq!(cut("\"a 'b\" 'c'"), [Quoted("\"a 'b\""), Code(" "), Quoted("'c'")]);
        assert_eq!(cut("a -- it's\nb"), [Code("a "), Comment("-- it's"), Code("\nb")]);
        assert_eq!(cut("a /* $1 ' */ b"), [Code("a "), Comment("/* $1 ' */"), Code(" b")]);
        assert_eq!(cut("a - b / c"), [Code("a - b / c")]);
        assert_eq!(cut("é 'ü' ö"), [Code("é "), Quoted("'ü'"), Code(" ö")]);
    }

    #[test]
    fn dollars_quote_only_with_a_tag() {
        assert_eq!(cut("AS $$ a; b $$ c"), [Code("AS "), Quoted("$$ a; b $$"), Code(" c")]);
        assert_eq!(cut("AS $do$ $$ $1 $do$"), [Code("AS "), Quoted("$do$ $$ $1 $do$")]);
        assert_eq!(cut("$1 + $2"), [Code("$1 + $2")]);
        assert_eq!(cut("($1,$2)"), [Code("($1,$2)")]);
        assert_eq!(cut("a$$ b $$"), [Code("a$$ b "), Quoted("$$")]);
    }

    #[test]
    fn what_is_never_closed_reaches_to_the_end() {
        assert_eq!(cut("a 'b $1"), [Code("a "), Quoted("'b $1")]);
        assert_eq!(cut("a -- b"), [Code("a "), Comment("-- b")]);
    }
}
