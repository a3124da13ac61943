//! The query language of search: read into a tree of our own, then written for each engine.
//!
//! `words` must all occur; `"a phrase"`; `begin*`; `AND`, `OR`, `NOT` and brackets; `subject:x`, `body:"x y"`. A word that holds
//! other characters (`POL-358`) is a phrase of its parts. What does not parse becomes "any of its words". Hints
//! (`from:`, `thread:`, `importance:`, `before:`, `after:`, `project:`) are taken out of the text and handed to the caller.
//!
//! # Contract
//! What is written for an engine holds nothing but our own words and operators, so no query makes an engine fail. Its size
//! is bounded by [`WORDS_MAX`] and [`DEPTH_MAX`].

use std::fmt;

use waybill_kernel::{Error, Result};

use super::terms::{Space, words};

/// A query's text, in bytes.
pub const QUERY_BYTES_MAX: usize = 1_024;
/// Words of one query.
pub const WORDS_MAX: usize = 32;
/// Brackets within brackets.
const DEPTH_MAX: usize = 8;
/// A word that is only begun has at least as many characters: a shorter one stands for a good part of all words.
const PREFIX_CHARS_MIN: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Subject,
    Body,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    Phrase { field: Option<Field>, words: Vec<String>, is_begun: bool },
    All(Vec<Expr>),
    Any(Vec<Expr>),
    Not(Box<Expr>),
}

/// A filter that was written into the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HintKind {
    From,
    Thread,
    Project,
    Before,
    After,
    Importance,
}

impl HintKind {
    pub const fn name(self) -> &'static str {
        match self {
            HintKind::From => "from",
            HintKind::Thread => "thread",
            HintKind::Project => "project",
            HintKind::Before => "before",
            HintKind::After => "after",
            HintKind::Importance => "importance",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    pub kind: HintKind,
    pub value: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// None where nothing is searched for: the filters alone decide.
    pub expr: Option<Expr>,
    pub hints: Vec<Hint>,
    /// It did not parse: any of its words is looked for.
    pub is_fallback: bool,
    /// There was something, and no word in it: nothing can be found.
    pub is_unsearchable: bool,
}

impl Query {
    pub fn read(text: &str) -> Result<Self> {
        if text.len() > QUERY_BYTES_MAX {
            let message = format!("`query` has {} bytes; at most {QUERY_BYTES_MAX} are taken.", text.len());
            return Err(Error::invalid(message));
        }
        let (tokens, hints) = lift(tokens(text));
        let mut parser = Parser { tokens: &tokens, at: 0, depth: 0 };
        let parsed = parser.any().filter(|_| parser.at == tokens.len());
        let (expr, is_fallback) = match parsed {
            Some(expr) => (simple(expr), false),
            None => (any_word(&tokens), !tokens.is_empty()),
        };
        let count = expr.as_ref().map_or(0, Expr::count);
        if count > WORDS_MAX {
            return Err(Error::invalid(format!("`query` has {count} words; at most {WORDS_MAX} are looked for.")));
        }
        let is_unsearchable = expr.is_none() && !tokens.is_empty();
        Ok(Self { expr, hints, is_fallback, is_unsearchable })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Open,
    Close,
    And,
    Or,
    Not,
    Quoted {
        field: Option<String>,
        text: String,
        is_begun: bool,
    },
    Bare {
        field: Option<String>,
        text: String,
        is_begun: bool,
    },
    /// A quote that is never closed.
    Broken(String),
}

fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (token, after) = match first {
            '(' => (Token::Open, &rest[1..]),
            ')' => (Token::Close, &rest[1..]),
            _ => word(rest),
        };
        tokens.push(token);
        rest = after.trim_start();
    }
    tokens
}

/// `field:"text"*`, `field:text*`, `"text"*`, `text*` or an operator.
fn word(rest: &str) -> (Token, &str) {
    let (field, value) = match field(rest) {
        Some((field, value)) => (Some(field.to_ascii_lowercase()), value),
        None => (None, rest),
    };
    if let Some(quoted) = value.strip_prefix('"') {
        let Some(end) = quoted.find('"') else { return (Token::Broken(quoted.to_owned()), "") };
        let after = &quoted[end + 1..];
        let is_begun = after.starts_with('*');
        return (Token::Quoted { field, text: quoted[..end].to_owned(), is_begun }, &after[usize::from(is_begun)..]);
    }
    let end = value.find(|c: char| c.is_whitespace() || matches!(c, '(' | ')' | '"')).unwrap_or(value.len());
    let (text, after) = value.split_at(end);
    let token = match (field, text) {
        (None, "AND") => Token::And,
        (None, "OR") => Token::Or,
        (None, "NOT") => Token::Not,
        (field, text) => Token::Bare { field, text: text.to_owned(), is_begun: text.ends_with('*') },
    };
    (token, after)
}

/// The name before a colon, if it is one of ours and something follows.
fn field(rest: &str) -> Option<(&str, &str)> {
    let (name, value) = rest.split_once(':')?;
    let lower = name.to_ascii_lowercase();
    let known = hint_kind(&lower).is_some() || field_of(&lower).is_some();
    (known && value.starts_with(|c: char| !c.is_whitespace() && !matches!(c, '(' | ')'))).then_some((name, value))
}

fn field_of(name: &str) -> Option<Field> {
    match name {
        "subject" | "title" => Some(Field::Subject),
        "body" | "content" | "text" => Some(Field::Body),
        _ => None,
    }
}

fn hint_kind(name: &str) -> Option<HintKind> {
    match name {
        "from" | "sender" => Some(HintKind::From),
        "thread" | "thread_id" => Some(HintKind::Thread),
        "project" => Some(HintKind::Project),
        "before" | "until" => Some(HintKind::Before),
        "after" | "since" => Some(HintKind::After),
        "importance" | "priority" => Some(HintKind::Importance),
        _ => None,
    }
}

/// Takes the hints out.
fn lift(tokens: Vec<Token>) -> (Vec<Token>, Vec<Hint>) {
    let mut hints = Vec::new();
    let rest = tokens.into_iter().filter(|token| match token {
        Token::Quoted { field: Some(field), text, .. } | Token::Bare { field: Some(field), text, .. } => {
            let Some(kind) = hint_kind(field) else { return true };
            hints.push(Hint { kind, value: text.clone() });
            false
        }
        _ => true,
    });
    let rest = rest.collect();
    (rest, hints)
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn take(&mut self, token: &Token) -> bool {
        let is_it = self.tokens.get(self.at) == Some(token);
        self.at += usize::from(is_it);
        is_it
    }

    fn any(&mut self) -> Option<Expr> {
        let mut parts = vec![self.all()?];
        while self.take(&Token::Or) {
            parts.push(self.all()?);
        }
        Some(Expr::Any(parts))
    }

    fn all(&mut self) -> Option<Expr> {
        let mut parts = vec![self.one()?];
        loop {
            let explicit = self.take(&Token::And);
            match self.tokens.get(self.at) {
                None | Some(Token::Or | Token::Close) if !explicit => return Some(Expr::All(parts)),
                _ => parts.push(self.one()?),
            }
        }
    }

    fn one(&mut self) -> Option<Expr> {
        if self.take(&Token::Not) {
            return self.nested(Self::one).map(|expr| Expr::Not(Box::new(expr)));
        }
        if self.take(&Token::Open) {
            let inner = self.nested(Self::any)?;
            return self.take(&Token::Close).then_some(inner);
        }
        let expr = self.tokens.get(self.at).and_then(phrase)?;
        self.at += 1;
        Some(expr)
    }

    fn nested(&mut self, read: fn(&mut Self) -> Option<Expr>) -> Option<Expr> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return None;
        }
        let inner = read(self);
        self.depth -= 1;
        inner
    }
}

/// None for an operator, and for a quote that is not closed.
fn phrase(token: &Token) -> Option<Expr> {
    let (Token::Quoted { field, text, is_begun } | Token::Bare { field, text, is_begun }) = token else { return None };
    let words: Vec<String> = words(text).collect();
    let is_begun = *is_begun && words.last().is_some_and(|word| word.chars().count() >= PREFIX_CHARS_MIN);
    Some(Expr::Phrase { field: field.as_deref().and_then(field_of), words, is_begun })
}

/// Without what has no words, and without groups of one.
fn simple(expr: Expr) -> Option<Expr> {
    let group = |parts: Vec<Expr>, make: fn(Vec<Expr>) -> Expr| {
        let mut parts: Vec<Expr> = parts.into_iter().filter_map(simple).collect();
        match parts.len() {
            0 => None,
            1 => parts.pop(),
            _ => Some(make(parts)),
        }
    };
    match expr {
        Expr::Phrase { ref words, .. } => (!words.is_empty()).then_some(expr),
        Expr::All(parts) => group(parts, Expr::All),
        Expr::Any(parts) => group(parts, Expr::Any),
        Expr::Not(inner) => simple(*inner).map(|inner| Expr::Not(Box::new(inner))),
    }
}

fn any_word(tokens: &[Token]) -> Option<Expr> {
    let texts = tokens.iter().filter_map(|token| match token {
        Token::Quoted { text, .. } | Token::Bare { text, .. } | Token::Broken(text) => Some(text.as_str()),
        _ => None,
    });
    let parts = texts.flat_map(words).map(|word| Expr::Phrase { field: None, words: vec![word], is_begun: false });
    simple(Expr::Any(parts.collect()))
}

impl Expr {
    fn count(&self) -> usize {
        match self {
            Expr::Phrase { words, .. } => words.len(),
            Expr::All(parts) | Expr::Any(parts) => parts.iter().map(Expr::count).sum(),
            Expr::Not(inner) => inner.count(),
        }
    }

    /// The same, with what it wants looked for in the subject alone.
    #[must_use]
    pub fn in_subject(&self) -> Self {
        match self {
            Expr::Phrase { field: Some(Field::Body), .. } | Expr::Not(_) => self.clone(),
            Expr::Phrase { words, is_begun, .. } => {
                Expr::Phrase { field: Some(Field::Subject), words: words.clone(), is_begun: *is_begun }
            }
            Expr::All(parts) => Expr::All(parts.iter().map(Self::in_subject).collect()),
            Expr::Any(parts) => Expr::Any(parts.iter().map(Self::in_subject).collect()),
        }
    }

    /// For FTS5, whose NOT stands between two: on its own it is "all that is meant by `everything`, but not".
    pub fn fts5(&self, space: Space, everything: &str) -> String {
        match self {
            Expr::Phrase { field, words, is_begun } => {
                let column = match field {
                    Some(Field::Subject) => "subject : ",
                    Some(Field::Body) => "body : ",
                    None => "",
                };
                let terms: Vec<String> = words.iter().map(|word| space.word(word)).collect();
                format!("{column}\"{}\"{}", terms.join(" "), if *is_begun { " *" } else { "" })
            }
            Expr::Any(parts) => joined(parts, " OR ", |part| part.fts5(space, everything)),
            Expr::All(parts) => {
                let (not, wanted): (Vec<_>, Vec<_>) = parts.iter().partition(|part| matches!(part, Expr::Not(_)));
                let wanted: Vec<String> = wanted.iter().map(|part| part.fts5(space, everything)).collect();
                let wanted = if wanted.is_empty() { format!("\"{everything}\"") } else { wanted.join(" AND ") };
                not.iter().fold(format!("({wanted})"), |wanted, part| match part {
                    Expr::Not(inner) => format!("({wanted} NOT ({}))", inner.fts5(space, everything)),
                    _ => wanted,
                })
            }
            Expr::Not(inner) => format!("(\"{everything}\" NOT ({}))", inner.fts5(space, everything)),
        }
    }

    pub fn tsquery(&self, space: Space) -> String {
        match self {
            Expr::Phrase { field, words, is_begun } => {
                let weight = match field {
                    Some(Field::Subject) => "A",
                    Some(Field::Body) => "B",
                    None => "",
                };
                let last = words.len().saturating_sub(1);
                let term = |(at, word): (usize, &String)| {
                    let begun = if *is_begun && at == last { "*" } else { "" };
                    let colon = if begun.is_empty() && weight.is_empty() { "" } else { ":" };
                    format!("'{}'{colon}{begun}{weight}", space.word(word))
                };
                let terms: Vec<String> = words.iter().enumerate().map(term).collect();
                format!("({})", terms.join(" <-> "))
            }
            Expr::Any(parts) => joined(parts, " | ", |part| part.tsquery(space)),
            Expr::All(parts) => joined(parts, " & ", |part| part.tsquery(space)),
            Expr::Not(inner) => format!("!({})", inner.tsquery(space)),
        }
    }
}

/// For people: how the query was understood.
impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expr::Phrase { field, words, is_begun } => {
                let field = match field {
                    Some(Field::Subject) => "subject:",
                    Some(Field::Body) => "body:",
                    None => "",
                };
                write!(f, "{field}\"{}\"{}", words.join(" "), if *is_begun { "*" } else { "" })
            }
            Expr::All(parts) => f.write_str(&joined(parts, " AND ", Self::to_string)),
            Expr::Any(parts) => f.write_str(&joined(parts, " OR ", Self::to_string)),
            Expr::Not(inner) => write!(f, "NOT {inner}"),
        }
    }
}

fn joined(parts: &[Expr], between: &str, write: impl Fn(&Expr) -> String) -> String {
    let parts: Vec<String> = parts.iter().map(write).collect();
    format!("({})", parts.join(between))
}

#[cfg(test)]
#[path = "query_tests.rs"]
mod tests;
