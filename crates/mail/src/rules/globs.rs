//! Do two patterns have a path in common? Decided exactly and in bounded time.
//!
//! | written | means |
//! |---|---|
//! | `**` as a whole part | any number of parts, also none |
//! | `*`, `?` | any run, any one character within a part |
//! | `[a-z]`, `[!a-z]`, `[^a-z]` | one character of, or not of, a set |
//! | `{a,b/c}` | one of several; may be nested and may hold separators |
//! | none of these | that path, and everything below it if it is a folder |
//!
//! Brackets also stand in names (`app/[slug]/page.tsx`, `app/[[...all]]`), and nobody who reserves such a file means a set. So a
//! text with brackets means both: what it is as a pattern, and the path in whose name they stand. One too much is refused to
//! somebody, rarely; the other way round a file is given twice.
//!
//! Braces are written out when the pattern is read, so everything else is about patterns without them. Two of those are
//! compared by walking both at once, part by part and within a part character by character: the places reached are pairs of
//! a place here and a place there, each visited once. Matching by trial and retreat would take exponential time on
//! patterns like `*a*a*a*b`.
//!
//! # Contract
//! [`Pattern::overlaps`] is symmetric. It takes at most as many steps as the product of both sizes; [`Budget`] bounds a
//! whole call, and what it no longer covers counts as overlapping: a path is refused rather than given twice. A step takes the
//! same time whatever is compared: two sets are as many steps as they have ranges.

use super::braces::{Brackets, expand};
use super::paths::Why;

/// A pattern with wildcards, in bytes. A plain path may be longer.
pub const GLOB_BYTES_MAX: usize = 512;
/// Steps of comparison that one call may take, some milliseconds. The two largest patterns there can be take about a quarter.
pub const STEPS_MAX: u64 = 4_194_304;

/// So many folders that two plain paths have in common are compared in less than a step.
const PARTS_FREE: usize = 8;

/// What is left of a call's comparisons.
#[derive(Debug)]
pub struct Budget(u64);

impl Default for Budget {
    fn default() -> Self {
        Self(STEPS_MAX)
    }
}

impl Budget {
    pub fn is_used_up(&self) -> bool {
        self.0 == 0
    }

    /// For what is not a comparison and takes its time all the same. False once it is used up.
    pub fn spend(&mut self, steps: usize) -> bool {
        self.0 = self.0.saturating_sub(steps as u64);
        self.0 > 0
    }
}

/// A pattern as it is compared.
#[derive(Clone, Debug)]
pub struct Pattern(Vec<Alternative>);

#[derive(Clone, Debug)]
struct Alternative {
    parts: Vec<Part>,
    /// Without any wildcard: it also means what lies below it.
    is_plain: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    /// `**`
    Any,
    Plain(String),
    Glob(Vec<Token>),
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    /// `*`
    Run,
    /// `?`
    One,
    Char(char),
    /// Ranges in ascending order that do not touch.
    Set(Vec<(char, char)>),
}

impl Pattern {
    /// Of a path in its normal form.
    pub fn read(text: &str) -> Result<Self, Why> {
        if !text.contains(['*', '?', '[', ']', '{', '}']) {
            return Ok(Self(vec![Alternative::read(text, Brackets::OfSets)?]));
        }
        if text.len() > GLOB_BYTES_MAX {
            return Err(broken(&format!("with wildcards it may have {GLOB_BYTES_MAX} bytes at most")));
        }
        let named = may_be_named(text).then(|| Self::written_out(text, Brackets::InNames));
        match (Self::written_out(text, Brackets::OfSets), named) {
            (Ok(mut all), Some(Ok(named))) => {
                all.extend(named);
                Ok(Self(all))
            }
            // No set has a set within.
            (Err(_), Some(Ok(named))) if are_nested(text) => Ok(Self(named)),
            (read, _) => read.map(Self),
        }
    }

    /// A path whose characters all mean themselves.
    pub fn of_name(text: &str) -> Self {
        let parts = text.split('/').filter(|part| !part.is_empty()).map(|part| Part::Plain(part.to_owned()));
        Self(vec![Alternative { parts: parts.collect(), is_plain: true }])
    }

    fn written_out(text: &str, brackets: Brackets) -> Result<Vec<Alternative>, Why> {
        expand(text, brackets)?.iter().map(|text| Alternative::read(text, brackets)).collect()
    }

    /// The first part of every path it can mean, if there is only one: two patterns that begin in different folders are
    /// told apart by an index.
    pub fn head(&self) -> Option<&str> {
        let mut heads = self.0.iter().map(|alternative| match alternative.parts.first() {
            Some(Part::Plain(text)) => Some(text.as_str()),
            _ => None,
        });
        let first = heads.next()??;
        heads.all(|head| head == Some(first)).then_some(first)
    }

    /// Has no wildcard.
    pub fn is_plain(&self) -> bool {
        matches!(&self.0[..], [only] if only.is_plain)
    }

    pub fn overlaps(&self, other: &Self, budget: &mut Budget) -> bool {
        self.0.iter().any(|here| other.0.iter().any(|there| here.overlaps(there, budget)))
    }
}

fn has_brackets(text: &str) -> bool {
    text.contains(['[', ']'])
}

/// Has brackets that may stand in a name. `[!…]` says by itself what it is.
fn may_be_named(text: &str) -> bool {
    has_brackets(text) && !text.contains("[!") && !text.contains("[^")
}

/// Every bracket has its other one, and a pair stands in another.
fn are_nested(text: &str) -> bool {
    let (mut depth, mut deepest) = (0_usize, 0);
    for c in text.chars() {
        match c {
            '[' => depth += 1,
            ']' if depth == 0 => return false,
            ']' => depth -= 1,
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    depth == 0 && deepest > 1
}

impl Alternative {
    fn read(text: &str, brackets: Brackets) -> Result<Self, Why> {
        let mut parts: Vec<Part> = Vec::new();
        if text.starts_with('/') {
            return Err(Why::Suspicious("is absolute"));
        }
        for part in text.split('/').filter(|part| !part.is_empty() && *part != ".") {
            match Part::read(part, brackets)? {
                Part::Any if parts.last() == Some(&Part::Any) => {}
                part => parts.push(part),
            }
        }
        if parts.iter().all(Part::is_nothing_but_stars) {
            return Err(Why::Suspicious("takes the whole project"));
        }
        let is_plain = parts.iter().all(|part| matches!(part, Part::Plain(_)));
        Ok(Self { parts, is_plain })
    }

    /// Walks over both: `reached[j]` says that the first parts here and the first `j` there have a path in common.
    fn overlaps(&self, other: &Self, budget: &mut Budget) -> bool {
        if self.is_plain && other.is_plain {
            return self.is_within(other, budget);
        }
        // A plain path also means what lies below it, as if `**` followed.
        let (here, there) = (self.parts.len(), other.parts.len());
        let mut reached = vec![false; there + 1];
        reached[0] = true;
        for i in 0..=here {
            let mut next = vec![false; there + 1];
            for j in 0..=there {
                if !reached[j] {
                    continue;
                }
                if !budget.spend(1) {
                    return true;
                }
                match (self.parts.get(i), other.parts.get(j)) {
                    (None, None) => return true,
                    (None, Some(_)) if self.is_plain => return true,
                    (Some(_), None) if other.is_plain => return true,
                    (mine, theirs) => {
                        if mine == Some(&Part::Any) {
                            next[j] = true;
                        }
                        if theirs == Some(&Part::Any) {
                            reached[j + 1] = true;
                        }
                        match (mine, theirs) {
                            (Some(Part::Any), Some(_)) => reached[j + 1] = true,
                            (Some(_), Some(Part::Any)) => next[j] = true,
                            (Some(mine), Some(theirs)) if mine.meets(theirs, budget) => next[j + 1] = true,
                            _ => {}
                        }
                    }
                }
            }
            reached = next;
        }
        false
    }
}

impl Alternative {
    /// Of two plain paths: one is the other, or a folder of it. Paths in the same few folders are what a large project has many
    /// of, and cost nothing; deep ones do.
    fn is_within(&self, other: &Self, budget: &mut Budget) -> bool {
        let (here, there) = (&self.parts, &other.parts);
        let alike = here.iter().zip(there).take_while(|(mine, theirs)| mine == theirs).count();
        let affordable = alike < PARTS_FREE || budget.spend(alike / PARTS_FREE);
        !affordable || alike == here.len().min(there.len())
    }
}

impl Part {
    fn read(text: &str, brackets: Brackets) -> Result<Self, Why> {
        if text == ".." {
            return Err(Why::Suspicious("leaves the project by `..`"));
        }
        if text.len() > 1 && text.bytes().all(|byte| byte == b'*') {
            return Ok(Part::Any);
        }
        let in_sets = brackets == Brackets::OfSets;
        let is_glob = text.contains(['*', '?']) || (in_sets && has_brackets(text));
        if !is_glob {
            return Ok(Part::Plain(text.to_owned()));
        }
        let mut tokens = Vec::new();
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            match c {
                '*' if tokens.last() == Some(&Token::Run) => {}
                '*' => tokens.push(Token::Run),
                '?' => tokens.push(Token::One),
                '[' if in_sets => tokens.push(Token::Set(set(&mut rest)?)),
                ']' if in_sets => return Err(broken("`]` closes nothing")),
                c => tokens.push(Token::Char(c)),
            }
        }
        Ok(Part::Glob(tokens))
    }

    fn is_nothing_but_stars(&self) -> bool {
        match self {
            Part::Any => true,
            Part::Plain(_) => false,
            Part::Glob(tokens) => tokens.iter().all(|token| *token == Token::Run),
        }
    }

    fn meets(&self, other: &Self, budget: &mut Budget) -> bool {
        match (self, other) {
            (Part::Plain(mine), Part::Plain(theirs)) => mine == theirs,
            (Part::Plain(plain), Part::Glob(tokens)) | (Part::Glob(tokens), Part::Plain(plain)) => {
                means(tokens, plain, budget)
            }
            (Part::Glob(mine), Part::Glob(theirs)) => meet(mine, theirs, budget),
            (Part::Any, _) | (_, Part::Any) => true,
        }
    }
}

/// As [`Alternative::overlaps`], of the characters of one part. A part is never empty, and needs no care here: both can
/// mean the empty text only if both are `*`, and then they have every other text in common as well.
fn meet(here: &[Token], there: &[Token], budget: &mut Budget) -> bool {
    let mut reached = vec![false; there.len() + 1];
    reached[0] = true;
    for i in 0..=here.len() {
        if !budget.spend(there.len() + 1) {
            return true;
        }
        let mut next = vec![false; there.len() + 1];
        for j in 0..=there.len() {
            if !reached[j] {
                continue;
            }
            match (here.get(i), there.get(j)) {
                (None, None) => return true,
                (Some(Token::Run), Some(_)) => {
                    next[j] = true;
                    reached[j + 1] = true;
                }
                (Some(Token::Run), None) => next[j] = true,
                (Some(_), Some(Token::Run)) => {
                    reached[j + 1] = true;
                    next[j] = true;
                }
                (None, Some(Token::Run)) => reached[j + 1] = true,
                (Some(mine), Some(theirs)) if mine.shares(theirs, budget) => next[j + 1] = true,
                _ => {}
            }
        }
        reached = next;
    }
    false
}

/// As [`meet`], of a text: `reached[j]` says that its first characters are what the first `j` tokens mean.
fn means(tokens: &[Token], text: &str, budget: &mut Budget) -> bool {
    let past_runs = |reached: &mut [bool]| {
        for (j, token) in tokens.iter().enumerate() {
            reached[j + 1] |= reached[j] && *token == Token::Run;
        }
    };
    let mut reached = vec![false; tokens.len() + 1];
    reached[0] = true;
    past_runs(&mut reached);
    for c in text.chars() {
        if !budget.spend(tokens.len() + 1) {
            return true;
        }
        let mut next = vec![false; tokens.len() + 1];
        for (j, token) in tokens.iter().enumerate().filter(|(j, _)| reached[*j]) {
            match token {
                Token::Run => next[j] = true,
                token if token.shares(&Token::Char(c), budget) => next[j + 1] = true,
                _ => {}
            }
        }
        past_runs(&mut next);
        if !next.contains(&true) {
            return false;
        }
        reached = next;
    }
    reached[tokens.len()]
}

impl Token {
    /// One character that both can be. Sets are never empty, so `?` shares with all of them.
    fn shares(&self, other: &Self, budget: &mut Budget) -> bool {
        match (self, other) {
            (Token::Char(mine), Token::Char(theirs)) => mine == theirs,
            (Token::Char(c), Token::Set(ranges)) | (Token::Set(ranges), Token::Char(c)) => {
                let at = ranges.partition_point(|(_, high)| high < c);
                ranges.get(at).is_some_and(|(low, _)| low <= c)
            }
            // One of each is what the caller has paid for.
            (Token::Set(mine), Token::Set(theirs)) => {
                !budget.spend(mine.len() + theirs.len() - 2) || share(mine, theirs)
            }
            _ => true,
        }
    }
}

/// Whether two lists of ranges, both in ascending order, have a character in common. The range that ends first can meet nothing
/// that comes later.
fn share(mine: &[(char, char)], theirs: &[(char, char)]) -> bool {
    let (mut i, mut j) = (0, 0);
    while let (Some((low, high)), Some((from, to))) = (mine.get(i), theirs.get(j)) {
        if low <= to && from <= high {
            return true;
        }
        if high < to { i += 1 } else { j += 1 }
    }
    false
}

/// What stands after `[`, up to its `]`.
fn set(rest: &mut std::str::Chars<'_>) -> Result<Vec<(char, char)>, Why> {
    let unclosed = || broken("`[` is not closed");
    let mut look = rest.clone();
    let negated = matches!(look.next(), Some('!' | '^'));
    if negated {
        rest.next();
    }
    let mut ranges = Vec::new();
    loop {
        let low = match rest.next().ok_or_else(unclosed)? {
            ']' => break,
            low => low,
        };
        let mut look = rest.clone();
        let high = match (look.next(), look.next()) {
            (Some('-'), Some(high)) if high != ']' => {
                *rest = look;
                high
            }
            _ => low,
        };
        if low > high {
            return Err(broken("a range in `[…]` runs backwards"));
        }
        ranges.push((low, high));
    }
    if ranges.is_empty() {
        return Err(broken("`[…]` is empty"));
    }
    let ranges = if negated { complement(&joined(ranges)) } else { joined(ranges) };
    let ranges = without_separator(&ranges);
    if ranges.is_empty() { Err(broken("`[…]` can be no character")) } else { Ok(ranges) }
}

/// In order, and none that touches the next.
fn joined(mut ranges: Vec<(char, char)>) -> Vec<(char, char)> {
    ranges.sort_unstable();
    let mut joined: Vec<(char, char)> = Vec::new();
    for (low, high) in ranges {
        match joined.last_mut() {
            Some((_, end)) if low <= *end || after(*end) == Some(low) => *end = high.max(*end),
            _ => joined.push((low, high)),
        }
    }
    joined
}

fn complement(ranges: &[(char, char)]) -> Vec<(char, char)> {
    let mut others = Vec::new();
    let mut from = Some('\0');
    for (low, high) in ranges {
        if let (Some(from), Some(to)) = (from, before(*low))
            && from <= to
        {
            others.push((from, to));
        }
        from = after(*high);
    }
    others.extend(from.map(|from| (from, char::MAX)));
    others
}

fn without_separator(ranges: &[(char, char)]) -> Vec<(char, char)> {
    let (below, above) = ('.', '0');
    let cut = |(low, high): &(char, char)| [(*low, (*high).min(below)), ((*low).max(above), *high)];
    ranges.iter().flat_map(cut).filter(|(low, high)| low <= high).collect()
}

fn after(c: char) -> Option<char> {
    (c..=char::MAX).nth(1)
}

fn before(c: char) -> Option<char> {
    ('\0'..=c).rev().nth(1)
}

pub(super) fn broken(why: &str) -> Why {
    Why::Broken(why.to_owned())
}

#[cfg(test)]
#[path = "globs_tests.rs"]
mod tests;
