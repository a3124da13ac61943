//! Patterns with braces, written out: `a{b,c{d,e}}` is `ab`, `acd` and `ace`. One walk over the text, and what is written is
//! bounded: the stored patterns of a whole project are read by every call that compares with them.

use super::globs::broken;
use super::paths::Why;

/// What braces may be written out to.
const ALTERNATIVES_MAX: usize = 32;
/// All alternatives of one pattern together, in bytes.
const ALTERNATIVES_BYTES_MAX: usize = 1_024;
/// Braces within braces.
pub(super) const BRACES_DEPTH_MAX: usize = 8;

/// What `[` and `]` are read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Brackets {
    OfSets,
    InNames,
}

/// Every text that is meant, without braces.
pub(super) fn expand(text: &str, brackets: Brackets) -> Result<Vec<String>, Why> {
    let mut rest = text.chars().peekable();
    let texts = sequence(&mut rest, brackets, 0)?;
    match rest.next() {
        None => Ok(texts),
        Some(_) => Err(broken("`}` closes nothing")),
    }
}

type Rest<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// Everything up to the end, or within braces up to their `,` or `}`, which is left. Braces and commas in a set are characters.
fn sequence(rest: &mut Rest<'_>, brackets: Brackets, depth: usize) -> Result<Vec<String>, Why> {
    let mut texts = vec![String::new()];
    let mut plain = String::new();
    let mut in_set = false;
    while let Some(&c) = rest.peek() {
        if !in_set && (c == '}' || (c == ',' && depth > 0)) {
            break;
        }
        rest.next();
        match c {
            '{' if !in_set => {
                append(&mut texts, &mut plain)?;
                texts = product(&texts, &alternatives(rest, brackets, depth + 1)?)?;
            }
            c => {
                in_set = brackets == Brackets::OfSets && if in_set { c != ']' } else { c == '[' };
                plain.push(c);
            }
        }
    }
    if in_set {
        return Err(broken("`[` is not closed"));
    }
    append(&mut texts, &mut plain)?;
    Ok(texts)
}

/// What stands after `{`, up to its `}`.
fn alternatives(rest: &mut Rest<'_>, brackets: Brackets, depth: usize) -> Result<Vec<String>, Why> {
    if depth > BRACES_DEPTH_MAX {
        return Err(broken(&format!("braces are nested more than {BRACES_DEPTH_MAX} deep")));
    }
    let mut texts = Vec::new();
    loop {
        texts.extend(sequence(rest, brackets, depth)?);
        check_bounds(&texts)?;
        match rest.next() {
            Some(',') => {}
            Some(_) if texts == [""] => return Err(broken("`{}` is empty")),
            Some(_) => return Ok(texts),
            None => return Err(broken("`{` is not closed")),
        }
    }
}

/// Puts what was read since the last braces behind every text.
fn append(texts: &mut [String], plain: &mut String) -> Result<(), Why> {
    texts.iter_mut().for_each(|text| text.push_str(plain));
    plain.clear();
    check_bounds(texts)
}

fn product(texts: &[String], ends: &[String]) -> Result<Vec<String>, Why> {
    if texts.len() * ends.len() > ALTERNATIVES_MAX {
        return Err(too_many());
    }
    let texts: Vec<String> = texts.iter().flat_map(|text| ends.iter().map(move |end| format!("{text}{end}"))).collect();
    check_bounds(&texts)?;
    Ok(texts)
}

/// Whatever is within braces stands in what is written in the end: what is too much in between is too much there.
fn check_bounds(texts: &[String]) -> Result<(), Why> {
    let bytes: usize = texts.iter().map(String::len).sum();
    if texts.len() > ALTERNATIVES_MAX || bytes > ALTERNATIVES_BYTES_MAX { Err(too_many()) } else { Ok(()) }
}

fn too_many() -> Why {
    broken(&format!(
        "its braces stand for more than {ALTERNATIVES_MAX} patterns or {ALTERNATIVES_BYTES_MAX} bytes; reserve them one by one"
    ))
}
