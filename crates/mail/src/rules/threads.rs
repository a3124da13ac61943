//! Names of threads.

use waybill_kernel::{Code, Error, Result};

pub const THREAD_CHARS_MAX: usize = 128;

/// 1 to 128 characters: the first a letter or digit, the others those or `.`, `_`, `-`.
pub fn check(thread: &str) -> Result<()> {
    let mut chars = thread.chars();
    let first = chars.next().is_some_and(|c| c.is_ascii_alphanumeric());
    let rest = chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
    if first && rest && thread.len() <= THREAD_CHARS_MAX {
        return Ok(());
    }
    let message = format!(
        "thread_id must have 1 to {THREAD_CHARS_MAX} characters, the first a letter or digit, the others letters, digits, \
         dots, underscores and hyphens."
    );
    Err(Error::new(Code::InvalidThreadId, message))
}

/// A bare number is the thread that a reply to that message began.
pub fn seeded_by(thread: &str) -> Option<i64> {
    thread.bytes().all(|byte| byte.is_ascii_digit()).then(|| thread.parse().ok()).flatten()
}

/// A bare number in any spelling: none that begins with zeros is a message's.
pub fn is_number(thread: &str) -> bool {
    !thread.is_empty() && thread.bytes().all(|byte| byte.is_ascii_digit())
}

/// The subject of an answer: the prefix once, whatever its case.
pub fn reply_subject(prefix: &str, subject: &str) -> String {
    let prefix = prefix.trim();
    let has = subject.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix));
    if prefix.is_empty() || has { subject.to_owned() } else { format!("{prefix} {subject}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_named_by_what_is_safe_in_a_path() {
        for thread in ["a", "7", "FEAT-123", "br_1.2-x", &"x".repeat(128)] {
            assert!(check(thread).is_ok(), "{thread}");
        }
        for thread in ["", ".a", "-a", "_a", "a b", "a/b", "ä", "a\u{0}", &"x".repeat(129)] {
            assert_eq!(check(thread).unwrap_err().code(), Code::InvalidThreadId, "{thread:?}");
        }
    }

    #[test]
    fn a_bare_number_names_a_message() {
        assert_eq!((seeded_by("42"), seeded_by("42a"), seeded_by("99999999999999999999")), (Some(42), None, None));
        assert!(is_number("99999999999999999999") && !is_number("") && !is_number("4x"));
    }

    #[test]
    fn the_prefix_stands_once() {
        for (subject, expected) in
            [("Plan", "Re: Plan"), ("re: Plan", "re: Plan"), ("RE: Re: x", "RE: Re: x"), ("ä", "Re: ä")]
        {
            assert_eq!(reply_subject("Re:", subject), expected);
        }
        assert_eq!(reply_subject("", "Plan"), "Plan");
    }
}
