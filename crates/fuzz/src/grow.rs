//! How inputs are made of others: bytes changed at random, words of the grammars put in, and the whole wrapped deep.

use crate::rng::Rng;

/// Large enough for some thousand levels of anything, small enough for thousands of inputs a second.
const INPUT_BYTES_MAX: usize = 128 << 10;
/// What goes into the pool; larger ones are made of these again.
const KEPT_BYTES_MAX: usize = 4 << 10;
const POOL_MAX: usize = 256;
const EDITS_MAX: usize = 4;
/// As a power of two.
const DEPTH_POWERS: usize = 16;
const RAW_LEVELS_POWERS: usize = 7;
/// Below the depth at which a parser of JSON gives up.
const RAW_BRACKETS_MAX: usize = 120;
/// The name under which serde_json knows JSON in its raw form, and reads it again from a depth of zero.
const RAW_NAME: &str = "$serde_json::private::RawValue";

/// Pieces of every grammar that a reader here knows.
const WORDS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    "\"",
    ":",
    ",",
    "\\",
    "\\u0000",
    "\\ud800",
    "\\u0022",
    "null",
    "true",
    "false",
    "-0",
    "1e999",
    "1e-400",
    "9007199254740993",
    "18446744073709551616",
    "-9223372036854775809",
    "0.1",
    "\u{0}",
    "\u{feff}",
    "\u{200b}",
    "\u{202e}",
    "\u{10ffff}",
    "é",
    " ",
    "\t",
    "\n",
    "\r\n",
    "a",
    "0",
    "aga_",
    "agent:",
    "worker:",
    "system:",
    "asyncgate:",
    "human:",
    "%",
    "%00",
    "%ff",
    "%2B",
    "+",
    "&",
    "=",
    ";",
    "*",
    "*/",
    "-",
    "L",
    "W",
    "#",
    "?",
    "@daily",
    "SUN",
    "JAN",
    "60",
    "59",
    "31",
    "99999999999999999999",
    "jsonrpc",
    "\"2.0\"",
    "\"id\":",
    "\"method\":",
    "\"params\":",
    "\"tools/call\"",
    "\"initialize\"",
    "\"ping\"",
    "\"arguments\":",
    "\"_meta\":",
    "\"name\":",
    "\"result\":",
    "\"error\":",
    "\"payload\":",
    RAW_NAME,
    "$serde_json::private::Number",
    "__proto__",
];

pub struct Pool(Vec<Vec<u8>>);

impl Pool {
    pub fn new(seeds: &[&str]) -> Self {
        let mut pool: Vec<_> = seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect();
        pool.push(Vec::new());
        Self(pool)
    }

    /// An accepted input is one to go on from.
    pub fn take(&mut self, input: Vec<u8>, rng: &mut Rng) {
        if input.len() > KEPT_BYTES_MAX {
            return;
        }
        if self.0.len() < POOL_MAX {
            self.0.push(input);
        } else {
            let index = rng.below(POOL_MAX);
            self.0[index] = input;
        }
    }

    pub fn grow(&self, rng: &mut Rng) -> Vec<u8> {
        let mut input = self.any(rng);
        for _ in 0..=rng.below(EDITS_MAX) {
            input = self.edit(input, rng);
            input.truncate(INPUT_BYTES_MAX);
        }
        input
    }

    fn any(&self, rng: &mut Rng) -> Vec<u8> {
        rng.pick(&self.0).cloned().unwrap_or_default()
    }

    fn edit(&self, mut input: Vec<u8>, rng: &mut Rng) -> Vec<u8> {
        let at = rng.below(input.len() + 1);
        let length = rng.size(6).min(input.len() - at);
        match rng.below(14) {
            0 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << rng.below(8);
                }
            }
            1 => input.insert(at, rng.byte()),
            2 => drop(input.drain(at..at + length)),
            3 => input.truncate(at),
            4 => {
                let part = input[at..at + length].to_vec();
                insert(&mut input, at, &part.repeat(rng.size(10)));
            }
            5 => {
                let other = self.any(rng);
                insert(&mut input, at, &other);
            }
            6..=8 => {
                let word = rng.pick(WORDS).copied().unwrap_or_default();
                insert(&mut input, at, word.as_bytes());
            }
            9 => insert(&mut input, at, "{\"a\":".repeat(rng.size(DEPTH_POWERS)).as_bytes()),
            10..=11 => return deep(&input, rng),
            _ => return put_within(&input, &deep(b"1", rng), rng),
        }
        input
    }
}

/// The whole of an input, deep within something.
fn deep(input: &[u8], rng: &mut Rng) -> Vec<u8> {
    let depth = rng.size(DEPTH_POWERS);
    match rng.below(6) {
        0 => wrapped(input, "[", "]", depth),
        1 => wrapped(input, "{\"a\":", "}", depth),
        2 => wrapped(input, "[{\"\":", "}]", depth),
        _ => raw(input, rng.size(RAW_LEVELS_POWERS), rng.below(RAW_BRACKETS_MAX)),
    }
}

/// In the place of a digit: most often that is a whole value.
fn put_within(input: &[u8], value: &[u8], rng: &mut Rng) -> Vec<u8> {
    let digits: Vec<_> = input.iter().enumerate().filter(|(_, byte)| byte.is_ascii_digit()).map(|(at, _)| at).collect();
    match rng.pick(&digits) {
        Some(at) => [&input[..*at], value, &input[at + 1..]].concat(),
        None => input.to_vec(),
    }
}

fn insert(input: &mut Vec<u8>, at: usize, part: &[u8]) {
    let room = INPUT_BYTES_MAX.saturating_sub(input.len()).min(part.len());
    *input = [&input[..at], &part[..room], &input[at..]].concat();
}

/// `depth` is cut to what fits with both its ends.
fn wrapped(input: &[u8], opening: &str, end: &str, depth: usize) -> Vec<u8> {
    let room = INPUT_BYTES_MAX.saturating_sub(input.len());
    let depth = depth.min(room / (opening.len() + end.len()));
    [opening.repeat(depth).as_bytes(), input, end.repeat(depth).as_bytes()].concat()
}

/// Objects of the raw name, the text of each being the JSON of the next, with brackets around each; as many as fit.
fn raw(input: &[u8], levels: usize, brackets: usize) -> Vec<u8> {
    // A character within n texts within one another is escaped n times. By \u escapes that adds five characters each time;
    // by backslashes it would double them.
    let backslash = |times: usize| format!("\\{}", "u005c".repeat(times));
    let quote = |times: usize| match times.checked_sub(1) {
        None => "\"".to_owned(),
        Some(rest) => format!("{}u0022", backslash(rest)),
    };
    let (mut opening, mut end) = (String::new(), Vec::new());
    let mut level = 0;
    while level < levels && opening.len() + 4 * quote(level).len() < INPUT_BYTES_MAX / 2 {
        let quote = quote(level);
        opening += &format!("{}{{{quote}{RAW_NAME}{quote}:{quote}", "[".repeat(brackets));
        end.push(format!("{quote}}}{}", "]".repeat(brackets)));
        level += 1;
    }
    let input = String::from_utf8_lossy(input).replace('\\', &backslash(level)).replace('"', &quote(level));
    end.reverse();
    [opening, input, end.concat()].concat().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_text_is_escaped_once_for_each_text_around_it() {
        assert_eq!(raw(b"\"\\", 0, 9), b"\"\\");
        let one = format!(r#"[{{"{RAW_NAME}":"\u0022a\u005c"}}]"#);
        assert_eq!(raw(b"\"a\\", 1, 1), one.as_bytes());
        let again = one.replace('\\', r"\u005c").replace('"', r"\u0022");
        let two = format!(r#"[{{"{RAW_NAME}":"{again}"}}]"#);
        assert_eq!(String::from_utf8_lossy(&raw(b"\"a\\", 2, 1)), two);
    }

    #[test]
    fn deep_and_raw_inputs_come_up_and_none_is_too_large() {
        let (pool, mut rng) = (Pool::new(&["{\"a\":1}"]), Rng::new(1));
        let (mut deep, mut raw) = (0, 0);
        for _ in 0..2_000 {
            let input = pool.grow(&mut rng);
            assert!(input.len() <= INPUT_BYTES_MAX);
            deep += usize::from(input.starts_with(&b"[".repeat(1_000)));
            let text = String::from_utf8_lossy(&input);
            raw += usize::from(text.starts_with("{\"a\":") && text.matches(RAW_NAME).count() > 20);
        }
        assert!(deep > 10 && raw > 10, "{deep} deep, {raw} raw within");
    }
}
