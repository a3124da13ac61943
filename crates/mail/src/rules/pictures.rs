//! Pictures that a text in Markdown shows: `![words](destination)`, and where each destination stands.
//!
//! Not a reader of all of Markdown. What is in code (a fence, or backticks of one line) shows nothing; pictures by reference
//! (`![words][name]`) and brackets within the words are left alone, as text. Every step forward is bounded, so that a text costs
//! its own length, whatever it is made of.

use std::ops::Range;

/// Of the words of a picture, and of its title.
const WORDS_BYTES_MAX: usize = 1_000;
/// Of a destination that is no data URI.
const PATH_BYTES_MAX: usize = 4_096;
/// Longer runs of backticks begin no code: each length that is never closed costs a look through the line.
const TICKS_MAX: usize = 16;

/// What a picture is shown from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source<'a> {
    /// A file, if there is one.
    Path(&'a str),
    /// Its bytes in base64.
    Data(&'a str),
}

impl<'a> Source<'a> {
    /// None for addresses of the network and whatever else begins with a scheme.
    pub fn of(destination: &'a str) -> Option<Self> {
        if let Some(data) = destination.strip_prefix("data:image/") {
            let (kind, content) = data.split_once(";base64,")?;
            let is_plain = kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+.-".contains(&byte));
            return is_plain.then_some(Source::Data(content));
        }
        let has_scheme = destination.split('/').next().is_some_and(|first| first.contains(':'));
        let is_path = !destination.is_empty() && !has_scheme && !destination.starts_with(['#', '?']);
        is_path.then_some(Source::Path(destination))
    }
}

/// The destinations, in order: at most `max` that are paths or data.
pub fn find(text: &str, max: usize) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let (mut fence, mut at) = (None, 0);
    for line in text.split_inclusive('\n') {
        match (fence, fence_of(line)) {
            (None, Some(opening)) => fence = Some(opening),
            (None, None) => in_line(line, at, max, &mut found),
            (Some((mark, length)), Some((other, longer))) if mark == other && longer >= length => fence = None,
            (Some(_), _) => {}
        }
        at += line.len();
        if found.len() >= max {
            break;
        }
    }
    found
}

/// The sign and the length of a fence that this line is.
fn fence_of(line: &str) -> Option<(u8, usize)> {
    let inner = line.trim_start_matches(' ');
    let mark = *inner.as_bytes().first().filter(|mark| b"`~".contains(mark))?;
    let length = run(inner.as_bytes(), 0);
    // A line with backticks further on is one with code in it.
    let is_fence = line.len() - inner.len() <= 3 && length >= 3 && !(mark == b'`' && inner[length..].contains('`'));
    is_fence.then_some((mark, length))
}

fn in_line(line: &str, begin: usize, max: usize, found: &mut Vec<Range<usize>>) {
    let bytes = line.as_bytes();
    let mut unclosed = [false; TICKS_MAX + 1];
    let mut at = 0;
    while at < bytes.len() && found.len() < max {
        match bytes[at] {
            b'\\' => at += 2,
            b'`' => at = after_code(bytes, at, &mut unclosed),
            b'!' if bytes.get(at + 1) == Some(&b'[') => match picture(line, at + 2) {
                Some((destination, end)) => {
                    if Source::of(&line[destination.clone()]).is_some() {
                        found.push(begin + destination.start..begin + destination.end);
                    }
                    at = end;
                }
                None => at += 2,
            },
            _ => at += 1,
        }
    }
}

/// Behind the code that begins here, or behind its backticks if nothing closes it.
fn after_code(bytes: &[u8], at: usize, unclosed: &mut [bool; TICKS_MAX + 1]) -> usize {
    let length = run(bytes, at);
    let mut next = at + length;
    if length > TICKS_MAX || unclosed[length] {
        return next;
    }
    while next < bytes.len() {
        if bytes[next] != b'`' {
            next += 1;
            continue;
        }
        let closing = run(bytes, next);
        next += closing;
        if closing == length {
            return next;
        }
    }
    unclosed[length] = true;
    at + length
}

/// How often the byte stands here in a row.
fn run(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().take_while(|byte| **byte == bytes[at]).count()
}

/// The destination of the picture whose words begin here, and where the picture ends.
fn picture(line: &str, words: usize) -> Option<(Range<usize>, usize)> {
    let bytes = line.as_bytes();
    let close = until(bytes, words, WORDS_BYTES_MAX, |byte| b"[]\n".contains(&byte))?;
    if !bytes[close..].starts_with(b"](") {
        return None;
    }
    let begin = close + 2;
    let (destination, next) = match bytes.get(begin)? {
        b'<' => {
            let end = until(bytes, begin + 1, PATH_BYTES_MAX, |byte| b"<>\n".contains(&byte))?;
            (begin + 1..end, (bytes[end] == b'>').then_some(end + 1)?)
        }
        // Whatever base64 has not ends it, so that of many that begin and do not end none is long.
        _ if line[begin..].starts_with("data:") => {
            let part = |byte: u8| byte.is_ascii_alphanumeric() || b":;,+/=.-".contains(&byte);
            let end = until(bytes, begin, usize::MAX, |byte| !part(byte))?;
            (begin..end, end)
        }
        _ => {
            let end = until(bytes, begin, PATH_BYTES_MAX, |byte| b" \t\n()<>".contains(&byte))?;
            (begin..end, end)
        }
    };
    Some((destination, after_title(bytes, next)?))
}

/// Behind the bracket that closes a picture, past its title.
fn after_title(bytes: &[u8], at: usize) -> Option<usize> {
    let next = until(bytes, at, WORDS_BYTES_MAX, |byte| byte != b' ')?;
    let quote = match bytes[next] {
        b')' => return Some(next + 1),
        quote @ (b'"' | b'\'') if next > at => quote,
        _ => return None,
    };
    let end = until(bytes, next + 1, WORDS_BYTES_MAX, |byte| byte == quote || byte == b'\n')?;
    (bytes[end] == quote && bytes.get(end + 1) == Some(&b')')).then_some(end + 2)
}

/// The first such byte, if it comes within `max` bytes. All that are looked for are ASCII, so that it is no part of a character.
fn until(bytes: &[u8], from: usize, max: usize, is_it: impl Fn(u8) -> bool) -> Option<usize> {
    bytes.get(from..)?.iter().take(max).position(|byte| is_it(*byte)).map(|at| from + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<&str> {
        find(text, 100).into_iter().map(|at| &text[at]).collect()
    }

    #[test]
    fn pictures_of_files_and_data_are_found_with_their_places() {
        for (text, expected) in [
            ("![a](docs/a.png)", vec!["docs/a.png"]),
            ("é ![ä](ö.png) ![b](b.jpg \"title\") ![](c.gif 'x')", vec!["ö.png", "b.jpg", "c.gif"]),
            ("![x](<my pictures/a b.png>)", vec!["my pictures/a b.png"]),
            ("[![x](a.png)](http://example.org)", vec!["a.png"]),
            ("* one\n  ![x](a.png)\n", vec!["a.png"]),
            ("![x](data:image/png;base64,iVBO+/w==)", vec!["data:image/png;base64,iVBO+/w=="]),
            ("![x](/abs/a.png)", vec!["/abs/a.png"]),
        ] {
            assert_eq!(found(text), expected, "{text}");
        }
        assert_eq!(find("![a](b.png) ![c](d.png)", 1).len(), 1);
    }

    #[test]
    fn what_shows_no_file_is_text() {
        for text in [
            "[a](a.png)",
            "![a][ref]",
            "![a](http://example.org/a.png) ![a](file:///etc/passwd) ![a](javascript:x)",
            "![a](data:text/html;base64,AAAA) ![a](data:image/png,xyz)",
            "\\![a](a.png)",
            "`![a](a.png)` and ``![b](` b.png)``",
            "```\n![a](a.png)\n```",
            "~~~md\n![a](a.png)\n```\n![b](b.png)\n~~~~",
            "![a](a.png",
            "![a\n](a.png)",
            "![a](#part) ![a]() ![a](a b.png)",
            "![a](<a.png) ![a](a.png \"x)",
        ] {
            assert_eq!(found(text), Vec::<&str>::new(), "{text}");
        }
        assert_eq!(found("```\ncode\n```\n![a](a.png)"), ["a.png"], "a fence ends");
        assert_eq!(found("an ` alone ![a](a.png)"), ["a.png"], "one that nothing closes is no code");
    }

    /// Texts made to be looked through again and again. The steps that are taken are bounded, and so this ends.
    #[test]
    fn no_text_costs_more_than_a_few_looks() {
        for part in ["![", "![](", "![](data:image/png;base64,", "![](<", "`", "![](a \"", "```", "\\"] {
            let text = part.repeat((1 << 20) / part.len());
            assert_eq!(find(&text, 16).len(), 0, "{part}");
        }
        let ticks: String = (1..1_000).map(|length| format!("{} ", "`".repeat(length))).collect();
        assert_eq!(find(&ticks, 16).len(), 0);
    }
}
