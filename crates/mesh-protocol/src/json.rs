//! How deep a JSON text is, before any parser sees it. A parser of JSON calls itself once per level, and serde_json reads the
//! text under a name of its own as JSON again, past its bound; the types here never take such a text as raw JSON.

/// Deeper JSON is refused: nothing that this crate reads has it.
pub const DEPTH_MAX: usize = 48;

/// Brackets that stand open at once, outside of strings. Of a text that is not JSON it is some number.
fn depth(text: &[u8]) -> usize {
    let (mut open, mut deepest) = (0_usize, 0);
    let (mut in_string, mut escaped) = (false, false);
    for byte in text {
        match (in_string, *byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_string = !in_string,
            (false, b'[' | b'{') => {
                open += 1;
                deepest = deepest.max(open);
            }
            (false, b']' | b'}') => open = open.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

pub fn is_too_deep(text: &[u8]) -> bool {
    depth(text) > DEPTH_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_count_outside_of_strings() {
        for (text, expected) in [
            ("1", 0),
            ("[]", 1),
            ("[[],[[]]]", 3),
            (r#"{"a":{"b":[1]},"c":[]}"#, 3),
            (r#"["[[[[", "\"[[", "\\"]"#, 1),
            ("]]][", 1),
        ] {
            assert_eq!(depth(text.as_bytes()), expected, "{text}");
        }
        assert!(is_too_deep("[".repeat(DEPTH_MAX + 1).as_bytes()));
        assert!(!is_too_deep("[".repeat(DEPTH_MAX).as_bytes()));
    }
}
