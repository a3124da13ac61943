//! The token that clients share instead of having keys, as they did before there were any: `shared_token` in the file,
//! `WAYBILL_SHARED_TOKEN`, or `ASYNCGATE_API_KEY` where servers of that name have it.

use std::net::SocketAddr;

use waybill_kernel::{Code, Error, Result};

const NAME: &str = "WAYBILL_SHARED_TOKEN";
const ALIAS: &str = "ASYNCGATE_API_KEY";
/// What a key of ours begins with.
const KEY_PREFIX: &str = "aga_";
const CHARS_MIN: usize = 16;
const CHARS_MAX: usize = 512;

/// The token of a server that listens on `http`, if it has one. `of_file` is what the settings file says.
pub fn chosen(of_file: Option<String>, http: SocketAddr) -> Result<Option<String>> {
    choose(|name| std::env::var(name).ok(), of_file, http)
}

fn choose(
    environment: impl Fn(&str) -> Option<String>,
    of_file: Option<String>,
    http: SocketAddr,
) -> Result<Option<String>> {
    let given = |name: &str| environment(name).filter(|token| !token.trim().is_empty());
    let own = given(NAME).map(|token| (NAME, token)).or_else(|| of_file.map(|token| ("shared_token", token)));
    // Workers and schedulers keep their keys there; one that is started beside the server leaves it a key and no token.
    let alias = || given(ALIAS).filter(|text| !text.starts_with(KEY_PREFIX)).map(|token| (ALIAS, token));
    let Some((name, token)) = own.or_else(alias) else { return Ok(None) };
    let refused = |why: String| Err(Error::new(Code::ConfigInvalid, format!("{name} {why}")));
    let token = token.trim().to_owned();
    let length = token.chars().count();
    if !(CHARS_MIN..=CHARS_MAX).contains(&length) || !token.chars().all(|character| character.is_ascii_graphic()) {
        return refused(format!(
            "must have {CHARS_MIN} to {CHARS_MAX} letters, digits and signs of ASCII, and no space; it has {length} characters."
        ));
    }
    if token.starts_with(KEY_PREFIX) {
        return refused(format!(
            "begins with {KEY_PREFIX}, as keys do: a key is its bearer's own, a shared token nobody's."
        ));
    }
    if !http.ip().is_loopback() {
        return refused(format!(
            "lets whoever has it act as anybody, so it is refused on {http}: listen on 127.0.0.1, or make keys with \
             `waybill key create`."
        ));
    }
    Ok(Some(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "correct-horse-battery";

    fn chosen(variables: &[(&str, &str)], of_file: Option<&str>, http: &str) -> Result<Option<String>> {
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        choose(variable, of_file.map(str::to_owned), http.parse().unwrap())
    }

    #[test]
    fn the_environment_goes_before_the_file_and_the_alias_last() {
        let other = "another-token-of-them";
        for (variables, of_file, expected) in [
            (&[][..], None, None),
            (&[(NAME, ""), (ALIAS, " ")], None, None),
            (&[(NAME, TOKEN), (ALIAS, other)], Some(other), Some(TOKEN)),
            (&[(ALIAS, other)], Some(TOKEN), Some(TOKEN)),
            (&[(ALIAS, TOKEN)], None, Some(TOKEN)),
            (&[(ALIAS, "aga_0123456789ab_a_workers_own")], None, None),
        ] {
            let found = chosen(variables, of_file, "127.0.0.1:7700").unwrap();
            assert_eq!(found.as_deref(), expected, "{variables:?} {of_file:?}");
        }
    }

    #[test]
    fn what_is_no_secret_or_would_be_everybodys_is_refused_without_repeating_it() {
        let long = "x".repeat(CHARS_MAX + 1);
        for (token, http) in [
            ("short", "127.0.0.1:7700"),
            (long.as_str(), "127.0.0.1:7700"),
            ("with a space in the middle", "127.0.0.1:7700"),
            ("unaussprechlich-schön", "127.0.0.1:7700"),
            ("aga_0123456789ab_somebodys", "127.0.0.1:7700"),
            (TOKEN, "0.0.0.0:7700"),
            (TOKEN, "[::]:7700"),
            (TOKEN, "192.0.2.1:7700"),
        ] {
            let error = chosen(&[(NAME, token)], None, http).unwrap_err();
            assert_eq!(error.code(), Code::ConfigInvalid, "{token} on {http}");
            assert!(error.message().starts_with(NAME) && !error.message().contains(token), "{error}");
        }
        assert!(chosen(&[(NAME, TOKEN)], None, "[::1]:7700").unwrap().is_some());
    }
}
