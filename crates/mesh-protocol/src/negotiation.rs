//! What both sides of a socket can do. The daemon says what it requires and what it could use, the broker answers with what it has
//! and its parameters, and the daemon judges the answer.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use waybill_kernel::{Code, Error, Result};

use crate::close::CloseCode;
use crate::edition::Edition;
use crate::meta::Meta;
use crate::{BLOB_BYTES, INLINE_BYTES};

pub const CLIENT_MESSAGE_ID_DEDUPE: &str = "client_message_id_dedupe";
pub const CONCURRENT_CONNECTION_POLICY: &str = "concurrent_connection_policy";
pub const MEMBER_KEYPAIR_ROTATED_EVENT: &str = "member_keypair_rotated_event";
pub const KEY_EPOCH: &str = "key_epoch";
pub const MAX_PAYLOAD: &str = "max_payload";

/// What a daemon cannot do without.
pub const REQUIRED: &[&str] =
    &[CLIENT_MESSAGE_ID_DEDUPE, CONCURRENT_CONNECTION_POLICY, MEMBER_KEYPAIR_ROTATED_EVENT, KEY_EPOCH, MAX_PAYLOAD];

/// Version 1 compared no fingerprints, which is as good as none.
pub const DEDUPE_VERSION: u32 = 2;
pub(crate) const VERSION: u32 = 1;
pub const DEDUPE_RETENTION_DAYS_MIN: u32 = 7;
const EPOCHS_MIN: u32 = 1;
/// Of a list and of an answer.
pub const FEATURES_MAX: usize = 64;

/// For how long the broker remembers the ids of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DedupeMode {
    RetentionScoped { days: u32 },
    Permanent,
}

/// What happens when a member connects while it is connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConcurrentPolicy {
    #[default]
    PreferNewest,
    PreferOldest,
    AllowConcurrent,
}

impl ConcurrentPolicy {
    pub const fn name(self) -> &'static str {
        match self {
            Self::PreferNewest => "prefer_newest",
            Self::PreferOldest => "prefer_oldest",
            Self::AllowConcurrent => "allow_concurrent",
        }
    }

    /// None for a name that is none of these.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::PreferNewest, Self::PreferOldest, Self::AllowConcurrent].into_iter().find(|policy| policy.name() == name)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureRequest {
    pub require: Vec<String>,
    #[serde(default)]
    pub optional: Vec<String>,
}

impl Default for FeatureRequest {
    fn default() -> Self {
        Edition::default().request()
    }
}

/// Parameters are free JSON here: wrong ones are a failed negotiation with a number of its own, not a frame that cannot be read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureResponse {
    pub supported: BTreeMap<String, Meta>,
    pub missing_required: Vec<String>,
}

/// What both sides have agreed on; also what a broker offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    pub dedupe: DedupeMode,
    pub concurrent: ConcurrentPolicy,
    pub max_concurrent_epochs: u32,
    pub inline_bytes: u64,
    pub blob_bytes: u64,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            dedupe: DedupeMode::RetentionScoped { days: 365 },
            concurrent: ConcurrentPolicy::default(),
            max_concurrent_epochs: 2,
            inline_bytes: INLINE_BYTES,
            blob_bytes: BLOB_BYTES,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ModeName {
    RetentionScoped,
    Permanent,
}

// A newer broker may say more about a feature than is known here: unlike those of frames, unknown parameters are passed over.

#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

#[derive(Deserialize)]
struct Dedupe {
    mode: ModeName,
    dedupe_retention_days: Option<u32>,
    request_fingerprint: bool,
}

#[derive(Deserialize)]
struct Concurrent {
    policy: ConcurrentPolicy,
}

#[derive(Deserialize)]
struct Epochs {
    max_concurrent_epochs: u32,
}

#[derive(Deserialize)]
struct Payload {
    inline_bytes: u64,
    blob_bytes: u64,
}

impl Features {
    /// What a broker of this edition supports, by name.
    pub fn advertised(&self, edition: &Edition) -> Result<BTreeMap<String, Meta>> {
        let offered = edition.versions().map(|(name, version)| {
            let mut parameters = self.parameters(name);
            parameters["version"] = json!(version);
            if name == CLIENT_MESSAGE_ID_DEDUPE && version < DEDUPE_VERSION {
                parameters["request_fingerprint"] = json!(false);
            }
            Ok((name.to_owned(), Meta::from_value(parameters)?))
        });
        offered.collect()
    }

    /// All but the version. A feature that has none here has none.
    fn parameters(&self, name: &str) -> Value {
        match (name, self.dedupe) {
            (CLIENT_MESSAGE_ID_DEDUPE, DedupeMode::RetentionScoped { days }) => json!({
                "mode": "retention_scoped", "dedupe_retention_days": days, "request_fingerprint": true
            }),
            (CLIENT_MESSAGE_ID_DEDUPE, DedupeMode::Permanent) => {
                json!({ "mode": "permanent", "request_fingerprint": true })
            }
            (CONCURRENT_CONNECTION_POLICY, _) => json!({ "policy": self.concurrent.name() }),
            (KEY_EPOCH, _) => json!({ "max_concurrent_epochs": self.max_concurrent_epochs }),
            (MAX_PAYLOAD, _) => json!({ "inline_bytes": self.inline_bytes, "blob_bytes": self.blob_bytes }),
            _ => json!({}),
        }
    }

    /// The answer of a broker of this build.
    ///
    /// # Errors
    /// `invalid_request` for lists that are too long.
    pub fn answer(&self, request: &FeatureRequest) -> Result<FeatureResponse> {
        self.answer_by(&Edition::default(), request)
    }

    /// The answer of a broker: of what was asked for, what there is.
    ///
    /// # Errors
    /// `invalid_request` for lists that are too long.
    pub fn answer_by(&self, edition: &Edition, request: &FeatureRequest) -> Result<FeatureResponse> {
        if request.require.len() + request.optional.len() > FEATURES_MAX {
            return Err(Error::invalid(format!("At most {FEATURES_MAX} features can be asked for.")));
        }
        let mut advertised = self.advertised(edition)?;
        let missing = request.require.iter().filter(|name| !advertised.contains_key(*name)).cloned().collect();
        advertised.retain(|name, _| request.require.contains(name) || request.optional.contains(name));
        Ok(FeatureResponse { supported: advertised, missing_required: missing })
    }

    /// The judgement of a daemon of this build.
    ///
    /// # Errors
    /// As [`Self::agreed_by`].
    pub fn agreed(response: &FeatureResponse) -> Result<Self> {
        Self::agreed_by(&Edition::default(), response)
    }

    /// The daemon's judgement of the answer. Of what it has not asked for it takes the usual values.
    ///
    /// # Errors
    /// `feature_missing`, `feature_parameters_invalid`, `feature_parameter_below_floor`; [`close_code`] has the number to each.
    pub fn agreed_by(edition: &Edition, response: &FeatureResponse) -> Result<Self> {
        if let Some(missing) = response.missing_required.first() {
            return Err(is_missing(missing));
        }
        for (name, version) in edition.required() {
            let _: Versioned = parameters(response, name, version)?;
        }
        let mut agreed = Self::default();
        if let Some(dedupe) = taken(edition, response, CLIENT_MESSAGE_ID_DEDUPE)? {
            agreed.dedupe = remembered(dedupe)?;
        }
        if let Some(Concurrent { policy }) = taken(edition, response, CONCURRENT_CONNECTION_POLICY)? {
            agreed.concurrent = policy;
        }
        if let Some(Epochs { max_concurrent_epochs }) = taken(edition, response, KEY_EPOCH)? {
            floor(KEY_EPOCH, "max_concurrent_epochs", max_concurrent_epochs, EPOCHS_MIN)?;
            agreed.max_concurrent_epochs = max_concurrent_epochs;
        }
        if let Some(Payload { inline_bytes, blob_bytes }) = taken(edition, response, MAX_PAYLOAD)? {
            if inline_bytes == 0 || blob_bytes < inline_bytes {
                return Err(is_invalid(
                    MAX_PAYLOAD,
                    "inline_bytes must be at least 1, and blob_bytes at least as much",
                ));
            }
            (agreed.inline_bytes, agreed.blob_bytes) = (inline_bytes, blob_bytes);
        }
        Ok(agreed)
    }
}

/// For how long, by what the broker says of it.
fn remembered(dedupe: Dedupe) -> Result<DedupeMode> {
    if !dedupe.request_fingerprint {
        return Err(is_invalid(CLIENT_MESSAGE_ID_DEDUPE, "request_fingerprint must be true"));
    }
    match (dedupe.mode, dedupe.dedupe_retention_days) {
        (ModeName::Permanent, _) => Ok(DedupeMode::Permanent),
        (ModeName::RetentionScoped, None) => {
            Err(is_invalid(CLIENT_MESSAGE_ID_DEDUPE, "dedupe_retention_days is missing"))
        }
        (ModeName::RetentionScoped, Some(days)) => {
            floor(CLIENT_MESSAGE_ID_DEDUPE, "dedupe_retention_days", days, DEDUPE_RETENTION_DAYS_MIN)?;
            Ok(DedupeMode::RetentionScoped { days })
        }
    }
}

/// The number with which a socket is closed after such an error; None for any other.
pub fn close_code(error: &Error) -> Option<CloseCode> {
    match error.code() {
        Code::FeatureMissing => Some(CloseCode::FeatureMissing),
        Code::FeatureParametersInvalid => Some(CloseCode::ParametersInvalid),
        Code::FeatureParameterBelowFloor => Some(CloseCode::ParameterBelowFloor),
        _ => None,
    }
}

/// The parameters of a feature that this edition has; None where it can do without and has to.
fn taken<T: DeserializeOwned>(edition: &Edition, response: &FeatureResponse, name: &str) -> Result<Option<T>> {
    let Some(version) = edition.version(name) else { return Ok(None) };
    match parameters(response, name, version) {
        Err(error) if error.code() == Code::FeatureMissing && edition.is_optional(name) => Ok(None),
        read => read.map(Some),
    }
}

/// An older version counts as missing.
fn parameters<T: DeserializeOwned>(response: &FeatureResponse, name: &str, version: u32) -> Result<T> {
    let given = response.supported.get(name).ok_or_else(|| is_missing(name))?;
    let read = |error: serde_json::Error| is_invalid(name, &error.to_string());
    let Versioned { version: offered } = serde_json::from_value(given.value().clone()).map_err(read)?;
    if offered < version {
        return Err(is_missing(name).because(format!("version {offered} is offered, {version} is needed")));
    }
    serde_json::from_value(given.value().clone()).map_err(read)
}

fn floor(feature: &str, parameter: &str, value: u32, least: u32) -> Result<()> {
    if value >= least {
        return Ok(());
    }
    let message = format!("{parameter} of {feature} is {value}; it must be at least {least}.");
    Err(Error::new(Code::FeatureParameterBelowFloor, message))
}

fn is_missing(feature: &str) -> Error {
    Error::new(Code::FeatureMissing, format!("The broker does not have {feature} as this daemon needs it."))
}

fn is_invalid(feature: &str, wrong: &str) -> Error {
    Error::new(Code::FeatureParametersInvalid, format!("The parameters of {feature} are not valid: {wrong}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(features: Features) -> FeatureResponse {
        features.answer(&FeatureRequest::default()).unwrap()
    }

    #[test]
    fn what_a_broker_offers_its_daemon_understands() {
        for dedupe in [DedupeMode::Permanent, DedupeMode::RetentionScoped { days: 7 }] {
            for concurrent in
                [ConcurrentPolicy::PreferNewest, ConcurrentPolicy::PreferOldest, ConcurrentPolicy::AllowConcurrent]
            {
                let offered = Features { dedupe, concurrent, ..Features::default() };
                assert_eq!(Features::agreed(&answered(offered)).unwrap(), offered);
                assert_eq!(ConcurrentPolicy::from_name(concurrent.name()), Some(concurrent));
            }
        }
    }

    #[test]
    fn of_what_is_asked_for_the_answer_has_what_there_is() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let request = FeatureRequest { require: names(&[KEY_EPOCH, "x"]), optional: names(&[MAX_PAYLOAD, "y"]) };
        let response = Features::default().answer(&request).unwrap();
        assert_eq!(response.supported.keys().map(String::as_str).collect::<Vec<_>>(), [KEY_EPOCH, MAX_PAYLOAD]);
        assert_eq!(response.missing_required, ["x"]);
        let many = FeatureRequest { require: vec!["x".to_owned(); FEATURES_MAX + 1], optional: Vec::new() };
        assert!(Features::default().answer(&many).is_err());
    }

    #[test]
    fn an_answer_that_will_not_do_has_its_number() {
        use CloseCode::{FeatureMissing, ParameterBelowFloor, ParametersInvalid};
        let dedupe = CLIENT_MESSAGE_ID_DEDUPE;
        let scoped = |days: Value| json!({"version": 2, "mode": "retention_scoped", "dedupe_retention_days": days, "request_fingerprint": true});
        for (name, parameters, expected) in [
            (dedupe, scoped(json!(7)), None),
            (dedupe, json!({"version": 3, "mode": "permanent", "request_fingerprint": true, "more": [1]}), None),
            (
                dedupe,
                json!({"version": 2, "mode": "permanent", "request_fingerprint": true, "dedupe_retention_days": 1}),
                None,
            ),
            (dedupe, scoped(json!(6)), Some(ParameterBelowFloor)),
            (dedupe, scoped(json!(0)), Some(ParameterBelowFloor)),
            (dedupe, scoped(json!(-1)), Some(ParametersInvalid)),
            (dedupe, scoped(json!("7")), Some(ParametersInvalid)),
            (dedupe, scoped(Value::Null), Some(ParametersInvalid)),
            (dedupe, json!({"version": 2, "mode": "some", "request_fingerprint": true}), Some(ParametersInvalid)),
            (dedupe, json!({"version": 2, "mode": "permanent", "request_fingerprint": false}), Some(ParametersInvalid)),
            (dedupe, json!({"version": 2, "mode": "permanent"}), Some(ParametersInvalid)),
            (dedupe, json!({"mode": "permanent", "request_fingerprint": true}), Some(ParametersInvalid)),
            (dedupe, json!(true), Some(ParametersInvalid)),
            (dedupe, json!({"version": 1, "mode": "permanent", "request_fingerprint": true}), Some(FeatureMissing)),
            (CONCURRENT_CONNECTION_POLICY, json!({"version": 1, "policy": "none"}), Some(ParametersInvalid)),
            (MEMBER_KEYPAIR_ROTATED_EVENT, json!({"version": 0}), Some(FeatureMissing)),
            (KEY_EPOCH, json!({"version": 1, "max_concurrent_epochs": 1}), None),
            (KEY_EPOCH, json!({"version": 1, "max_concurrent_epochs": 0}), Some(ParameterBelowFloor)),
            (MAX_PAYLOAD, json!({"version": 1, "inline_bytes": 1, "blob_bytes": 1}), None),
            (MAX_PAYLOAD, json!({"version": 1, "inline_bytes": 0, "blob_bytes": 1}), Some(ParametersInvalid)),
            (MAX_PAYLOAD, json!({"version": 1, "inline_bytes": 2, "blob_bytes": 1}), Some(ParametersInvalid)),
        ] {
            let mut response = answered(Features::default());
            response.supported.insert(name.to_owned(), Meta::from_value(parameters.clone()).unwrap());
            let agreed = Features::agreed(&response);
            let number = agreed.as_ref().err().map(|error| close_code(error).unwrap());
            assert_eq!(number, expected, "{name} {parameters}: {agreed:?}");
        }
        for name in REQUIRED {
            let mut response = answered(Features::default());
            response.supported.remove(*name);
            assert_eq!(close_code(&Features::agreed(&response).unwrap_err()), Some(FeatureMissing), "{name}");
        }
        let mut response = answered(Features::default());
        response.missing_required.push("later".to_owned());
        assert_eq!(close_code(&Features::agreed(&response).unwrap_err()), Some(FeatureMissing));
        assert_eq!(close_code(&Error::invalid("other")), None);
    }

    #[test]
    fn an_upgrade_may_begin_on_either_side() {
        let (now, later) = (Edition::default(), Edition::default().with_optional("threads", 1).with(MAX_PAYLOAD, 2));
        let before = Edition::default().without(KEY_EPOCH).without(MEMBER_KEYPAIR_ROTATED_EVENT);
        let offered = Features { inline_bytes: 1_000, max_concurrent_epochs: 3, ..Features::default() };
        let meet = |broker: &Edition, daemon: &Edition| {
            Features::agreed_by(daemon, &offered.answer_by(broker, &daemon.request()).unwrap())
        };
        assert_eq!(meet(&now, &now).unwrap(), offered);
        // A newer broker does what an older daemon asks for, and tells it of nothing else.
        assert_eq!(meet(&later, &now).unwrap(), offered);
        let answer = offered.answer_by(&later, &before.request()).unwrap();
        assert!(answer.missing_required.is_empty());
        assert!(!answer.supported.contains_key("threads") && !answer.supported.contains_key(KEY_EPOCH));
        let usual = Features::default().max_concurrent_epochs;
        assert_eq!(meet(&now, &before).unwrap(), Features { max_concurrent_epochs: usual, ..offered });
        // A newer daemon does without what it only wishes for, and not without the rest.
        assert_eq!(meet(&now, &Edition::default().with_optional("threads", 1)).unwrap(), offered);
        let wishing = Edition::default().with_optional(MAX_PAYLOAD, 2);
        assert_eq!(meet(&now, &wishing).unwrap(), Features { inline_bytes: INLINE_BYTES, ..offered });
        for (broker, daemon, named) in [
            (&now, &later, MAX_PAYLOAD),
            (&now, &Edition::default().with("threads", 1), "threads"),
            (&before, &now, KEY_EPOCH),
            (&Edition::default().with(CLIENT_MESSAGE_ID_DEDUPE, 1), &now, CLIENT_MESSAGE_ID_DEDUPE),
        ] {
            let error = meet(broker, daemon).unwrap_err();
            assert_eq!(close_code(&error), Some(CloseCode::FeatureMissing), "{error}");
            assert!(error.message().contains(named), "{error}");
        }
    }
}
