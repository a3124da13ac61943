//! The one idempotency rule. The unique key sits on the domain's own table; this function says what a request
//! means when the table already has a row under its key.

use std::time::Duration;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::{Error, Result, Time};

/// SHA-256 over the RFC 8785 form: equal for requests that differ only in spelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    pub fn of(request: &impl Serialize) -> Result<Self> {
        let canonical = serde_json_canonicalizer::to_vec(request).map_err(Error::internal)?;
        Ok(Self(Sha256::digest(&canonical).into()))
    }

    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// What the domain's table holds under the key.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// None where the policy is first-wins and nothing is ever compared.
    pub fingerprint: Option<Fingerprint>,
    pub at: Time,
}

#[derive(Clone, Copy, Debug)]
pub struct Presented {
    pub fingerprint: Option<Fingerprint>,
    pub now: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnMismatch {
    Conflict,
    FirstWins,
}

#[derive(Clone, Copy, Debug)]
pub struct Policy {
    pub on_mismatch: OnMismatch,
    /// How long a key is remembered; None for as long as the row lives.
    pub window: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Do it.
    Fresh,
    /// Answer from the row.
    Replay,
    /// The key was used for something else.
    Conflict,
}

pub fn decide(found: Option<Found>, presented: Presented, policy: Policy) -> Decision {
    let Some(found) = found else { return Decision::Fresh };
    if policy.window.is_some_and(|window| presented.now >= found.at.after(window)) {
        return Decision::Fresh;
    }
    match policy.on_mismatch {
        OnMismatch::FirstWins => Decision::Replay,
        OnMismatch::Conflict if found.fingerprint.is_some() && found.fingerprint == presented.fingerprint => {
            Decision::Replay
        }
        OnMismatch::Conflict => Decision::Conflict,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn print(value: &Value) -> Option<Fingerprint> {
        Some(Fingerprint::of(value).unwrap())
    }

    #[test]
    fn the_decision_table() {
        let (a, b) = (print(&json!({"x": 1})), print(&json!({"x": 2})));
        let at = Time::from_micros(1_000_000);
        let minute = Some(Duration::from_secs(60));
        let within = at.after(Duration::from_secs(59));
        let after = at.after(Duration::from_secs(60));
        use Decision::{Conflict, Fresh, Replay};
        use OnMismatch as M;
        for (found, presented, now, on_mismatch, window, expected) in [
            (None, a, within, M::Conflict, None, Fresh),
            (None, a, within, M::FirstWins, minute, Fresh),
            (Some(a), a, within, M::Conflict, None, Replay),
            (Some(a), b, within, M::Conflict, None, Conflict),
            (Some(a), b, within, M::FirstWins, None, Replay),
            (Some(a), b, after, M::FirstWins, minute, Fresh),
            (Some(a), b, after, M::Conflict, minute, Fresh),
            (Some(a), a, after, M::Conflict, minute, Fresh),
            (Some(a), b, within, M::Conflict, minute, Conflict),
            // A row that never stored a fingerprint cannot be shown equal.
            (Some(None), None, within, M::Conflict, None, Conflict),
            (Some(None), None, within, M::FirstWins, None, Replay),
        ] {
            let found = found.map(|fingerprint| Found { fingerprint, at });
            let decision = decide(found, Presented { fingerprint: presented, now }, Policy { on_mismatch, window });
            assert_eq!(decision, expected, "{found:?} {now} {on_mismatch:?} {window:?}");
        }
    }

    /// The examples RFC 8785 prints (sections 3.2.2 to 3.2.4), as input text and canonical bytes.
    #[test]
    fn rfc_8785_vectors() {
        let input = r#"{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],
            "string":"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}"#;
        let value: Value = serde_json::from_str(input).unwrap();
        let canonical = serde_json_canonicalizer::to_string(&value).unwrap();
        let expected = "{\"literals\":[null,true,false],\"numbers\":[333333333.3333333,1e+30,4.5,0.002,1e-27],\
            \"string\":\"€$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"}";
        assert_eq!(canonical, expected);

        let sorted: Value = serde_json::from_str(
            r#"{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One",
                "\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}"#,
        )
        .unwrap();
        let canonical = serde_json_canonicalizer::to_string(&sorted).unwrap();
        let order = ["\\r", "1", "\u{80}", "ö", "€", "😀", "\u{fb33}"];
        let positions: Vec<_> = order.iter().map(|key| canonical.find(&format!("\"{key}\":")).unwrap()).collect();
        assert!(positions.is_sorted(), "{canonical}");
    }

    #[test]
    fn fingerprints_ignore_spelling_and_nothing_else() {
        let spelled: Value = serde_json::from_str(r#"{ "b": [1.0, "\u0041"], "a": null }"#).unwrap();
        assert_eq!(print(&spelled), print(&json!({"a": null, "b": [1, "A"]})));
        assert_ne!(print(&spelled), print(&json!({"a": null, "b": ["A", 1]})));
        // SHA-256 of the two bytes `{}`.
        let digest = crate::hex::encode(print(&json!({})).unwrap().as_bytes());
        assert_eq!(digest, "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a");
    }
}
