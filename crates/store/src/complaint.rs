//! What serde says about a request, in words for whoever sent it: JSON has objects, lists and whole numbers, and no structs,
//! sequences or `u32`.

use serde_path_to_error::Error;

/// What is wrong, with the field it is about. What concerns the request as a whole names its field itself.
pub(crate) fn complaint(error: &Error<serde_json::Error>) -> String {
    let field = error.path().to_string();
    let text = error.inner().to_string();
    let text = reworded(without_position(&text));
    // "." is the request itself; a missing or unknown field is named by both.
    if field == "." || text.contains(&format!("`{field}`")) {
        return sentence(&text);
    }
    format!("{field}: {}", sentence(&text))
}

/// Where in the text it was found: of no use to a client, which does not see what was built from path, query and body.
fn without_position(text: &str) -> &str {
    text.rsplit_once(" at line ").map_or(text, |(before, _)| before)
}

fn reworded(text: &str) -> String {
    let found =
        ["invalid type: ", "invalid value: ", "invalid length "].into_iter().find_map(|kind| text.strip_prefix(kind));
    if let Some((given, wanted)) = found.and_then(|rest| rest.rsplit_once(", expected ")) {
        return format!("must be {}, not {}", wanted_in_words(wanted), given_in_words(given));
    }
    text.to_owned()
}

fn wanted_in_words(wanted: &str) -> &str {
    let first = wanted.split(' ').next().unwrap_or_default();
    match (first, wanted) {
        ("struct" | "map", _) | (_, "a map") => "an object",
        ("u8" | "u16" | "u32" | "u64" | "usize", _) => "a whole number that is not negative and not too large",
        ("i8" | "i16" | "i32" | "i64" | "isize", _) => "a whole number that is not too large",
        ("f32" | "f64", _) => "a number",
        ("tuple", _) | (_, "a sequence") => "a list",
        ("enum" | "variant", _) | (_, "string or map" | "a string" | "a borrowed string") => "a text",
        ("a", "a boolean") => "true or false",
        _ => wanted,
    }
}

fn given_in_words(given: &str) -> String {
    match given.split_once(' ').unwrap_or((given, "")) {
        ("map", _) => "an object".to_owned(),
        ("sequence", _) => "a list".to_owned(),
        ("null", _) | ("unit", _) => "null".to_owned(),
        ("boolean" | "integer", value) => value.trim_matches('`').to_owned(),
        ("floating", value) => value.trim_start_matches("point ").trim_matches('`').to_owned(),
        ("string", value) => format!("the text {value}"),
        _ => given.to_owned(),
    }
}

/// A message of ours that came through serde is a sentence already.
fn sentence(text: &str) -> String {
    let mut chars = text.trim_end_matches('.').chars();
    match chars.next() {
        Some(first) => format!("{}{}.", first.to_uppercase(), chars.as_str()),
        None => "The request cannot be read.".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_serde_says_becomes_a_sentence_without_words_of_rust() {
        for (said, expected) in [
            ("invalid type: string \"x\", expected struct Requirements", "Must be an object, not the text \"x\"."),
            ("invalid type: map, expected a sequence at line 1 column 4", "Must be a list, not an object."),
            (
                "invalid value: integer `-1`, expected u32",
                "Must be a whole number that is not negative and not too large, not -1.",
            ),
            (
                "invalid type: floating point `2.5`, expected i64",
                "Must be a whole number that is not too large, not 2.5.",
            ),
            ("invalid type: boolean `true`, expected a string", "Must be a text, not true."),
            ("invalid type: sequence, expected a boolean", "Must be true or false, not a list."),
            ("missing field `type`", "Missing field `type`."),
            ("unknown field `x`, expected one of `a`, `b`", "Unknown field `x`, expected one of `a`, `b`."),
            ("A principal is `kind:id`.", "A principal is `kind:id`."),
        ] {
            assert_eq!(sentence(&reworded(without_position(said))), expected);
        }
    }
}
