//! Errors as clients of existing mail servers read them: `{type, message, recoverable, data}`, beside what REST sends. And
//! arguments that those clients send with every call.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use waybill_kernel::{Code, Error};

/// What the fields of the object are that is no detail.
const OWN: [&str; 3] = ["error", "message", "help"];

/// The words that those servers have for what every server has to say. A code that is not here is its own type, in capitals:
/// those of mail are theirs already.
const TYPES: &[(Code, &str)] = &[
    (Code::InvalidRequest, "INVALID_ARGUMENT"),
    (Code::InvalidCursor, "INVALID_ARGUMENT"),
    (Code::PayloadTooLarge, "INVALID_ARGUMENT"),
    (Code::MissingParameter, "MISSING_FIELD"),
    (Code::NotFound, "NOT_FOUND"),
    (Code::RateLimitExceeded, "RESOURCE_BUSY"),
    (Code::Overloaded, "RESOURCE_BUSY"),
    (Code::RequestTimeout, "RESOURCE_BUSY"),
    (Code::ShuttingDown, "RESOURCE_BUSY"),
    (Code::DataFolderLocked, "RESOURCE_BUSY"),
    (Code::Unavailable, "DATABASE_ERROR"),
    (Code::StoreUnavailable, "DATABASE_ERROR"),
    (Code::DatabaseUnusable, "DATABASE_CORRUPTION"),
    (Code::SchemaTooNew, "DATABASE_CORRUPTION"),
    (Code::OutboxDamaged, "DATABASE_CORRUPTION"),
    (Code::StorageFull, "DISK_FULL"),
    (Code::InsufficientStorage, "DISK_FULL"),
    (Code::ConfigInvalid, "CONFIGURATION_ERROR"),
    (Code::AddressUnusable, "CONFIGURATION_ERROR"),
    (Code::DataFolderUnusable, "CONFIGURATION_ERROR"),
    (Code::UnsupportedStore, "CONFIGURATION_ERROR"),
    (Code::Internal, "UNHANDLED_EXCEPTION"),
];

/// What the same call, or another, will not mend.
const UNRECOVERABLE: [&str; 3] = ["UNHANDLED_EXCEPTION", "CONFIGURATION_ERROR", "DATABASE_CORRUPTION"];

/// The object of REST, and in it what those clients look for.
pub(super) fn typed(error: &Error) -> Value {
    let mut object = error.to_json();
    let kind = kind(error);
    if let Value::Object(fields) = &mut object {
        let own = |name: &&String| !OWN.contains(&name.as_str());
        let data: Map<String, Value> =
            fields.iter().filter(|(name, _)| own(name)).map(|(name, value)| (name.clone(), value.clone())).collect();
        fields.insert("recoverable".to_owned(), json!(!UNRECOVERABLE.contains(&kind.as_ref())));
        fields.insert("type".to_owned(), json!(kind));
        fields.insert("data".to_owned(), Value::Object(data));
    }
    object
}

fn kind(error: &Error) -> Cow<'static, str> {
    match TYPES.iter().find(|(code, _)| *code == error.code()) {
        Some((Code::InvalidRequest, usual)) => Cow::Borrowed(of_complaint(error.message()).unwrap_or(*usual)),
        Some((_, kind)) => Cow::Borrowed(*kind),
        None => {
            let code = error.code().entry().code;
            if code.bytes().any(|byte| byte.is_ascii_lowercase()) {
                Cow::Owned(code.to_ascii_uppercase())
            } else {
                Cow::Borrowed(code)
            }
        }
    }
}

/// What the reader of requests says of a field, by the beginning of its sentence.
fn of_complaint(message: &str) -> Option<&'static str> {
    if message.starts_with("Missing field `") {
        return Some("MISSING_FIELD");
    }
    // A path of fields, which has no blank, and what stands there.
    let (field, says) = message.split_once(": ")?;
    (!field.contains(' ') && says.starts_with("Must be ") && says.contains(", not ")).then_some("TYPE_ERROR")
}

/// The arguments without those of these names.
pub(super) fn without<'a>(arguments: &'a str, ignored: &[&str]) -> Cow<'a, str> {
    let is_in = |name: &&str| arguments.contains(&format!("\"{name}\""));
    if !ignored.iter().any(is_in) {
        return Cow::Borrowed(arguments);
    }
    let Ok(mut fields) = serde_json::from_str::<BTreeMap<Cow<'_, str>, &RawValue>>(arguments) else {
        return Cow::Borrowed(arguments);
    };
    let all = fields.len();
    fields.retain(|name, _| !ignored.contains(&name.as_ref()));
    match serde_json::to_string(&fields) {
        Ok(text) if fields.len() < all => Cow::Owned(text),
        _ => Cow::Borrowed(arguments),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// What the contract names beside the codes of mail.
    const COMMON: [&str; 13] = [
        "INVALID_ARGUMENT",
        "MISSING_FIELD",
        "TYPE_ERROR",
        "NOT_FOUND",
        "RESOURCE_BUSY",
        "DATABASE_ERROR",
        "DATABASE_POOL_EXHAUSTED",
        "DATABASE_CORRUPTION",
        "DISK_FULL",
        "ARCHIVE_ERROR",
        "FEATURE_DISABLED",
        "CONFIGURATION_ERROR",
        "UNHANDLED_EXCEPTION",
    ];

    #[test]
    fn every_code_has_a_type_and_says_whether_it_can_be_mended() {
        let mut mapped = HashSet::new();
        for (code, kind) in TYPES {
            assert!(mapped.insert(code.entry().code), "{code} stands twice");
            assert!(COMMON.contains(kind), "{kind} is no word of the contract");
        }
        for code in Code::ALL {
            let error = Error::new(*code, "It happened.").with("limit", 7);
            let (plain, shown) = (error.to_json(), typed(&error));
            for (name, value) in plain.as_object().unwrap() {
                assert_eq!(&shown[name], value, "{code}: nothing of REST is lost");
            }
            let kind = shown["type"].as_str().unwrap();
            assert!(
                kind.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_'),
                "{kind}"
            );
            let own = code.entry().code;
            assert!(COMMON.contains(&kind) || kind == own.to_ascii_uppercase(), "{own}: {kind}");
            let hopeless = ["UNHANDLED_EXCEPTION", "CONFIGURATION_ERROR", "DATABASE_CORRUPTION"].contains(&kind);
            assert_eq!(shown["recoverable"], !hopeless, "{own}");
            assert_eq!(shown["data"], json!({ "limit": 7 }), "{own}");
        }
        for (code, expected) in [
            (Code::ContactRequired, "CONTACT_REQUIRED"),
            (Code::FeatureDisabled, "FEATURE_DISABLED"),
            (Code::NotFound, "NOT_FOUND"),
            (Code::StorageFull, "DISK_FULL"),
            (Code::Internal, "UNHANDLED_EXCEPTION"),
            (Code::Forbidden, "FORBIDDEN"),
        ] {
            assert_eq!(typed(&Error::new(code, "x"))["type"], expected);
        }
    }

    #[test]
    fn a_field_that_is_missing_or_of_another_kind_has_a_type_of_its_own() {
        for (message, expected) in [
            ("Missing field `to`.", "MISSING_FIELD"),
            ("limit: Must be a whole number that is not too large, not 2.5.", "TYPE_ERROR"),
            ("attachments[0].name: Must be a text, not null.", "TYPE_ERROR"),
            ("limit must be at least 1.", "INVALID_ARGUMENT"),
            ("Unknown field `x`, expected one of `a`, `b`.", "INVALID_ARGUMENT"),
            ("thread_id names no thread.", "INVALID_ARGUMENT"),
        ] {
            assert_eq!(typed(&Error::invalid(message))["type"], expected, "{message}");
        }
    }

    #[test]
    fn what_is_ignored_is_left_away_and_nothing_else() {
        let ignored = ["format"];
        for same in [r#"{"a":1}"#, r#"{"a":"the \"format\""}"#, r#"{"a":{"format":"x"}}"#, "{}", r#"["format"]"#] {
            assert_eq!(without(same, &ignored), same);
        }
        assert_eq!(without(r#"{"b":2, "format":"toon","a": [1, 2]}"#, &ignored), r#"{"a":[1, 2],"b":2}"#);
        assert_eq!(without(r#"{"format":null}"#, &ignored), "{}");
        assert_eq!(without(r#"{"format":null}"#, &[]), r#"{"format":null}"#);
    }
}
