//! Where messages go that nobody can deal with (`RedrivePolicy`), and from where a queue takes such messages
//! (`RedriveAllowPolicy`). Both are kept as they were sent.

use serde::Deserialize;
use waybill_kernel::{Code, Error, Result};

pub const REDRIVE_POLICY: &str = "RedrivePolicy";
pub const REDRIVE_ALLOW_POLICY: &str = "RedriveAllowPolicy";

const RECEIVES_MAX: i64 = 1_000;
const RECEIVES_USUAL: i64 = 10;
const SOURCES_MAX: usize = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedrivePolicy {
    pub target_arn: String,
    /// So many times a message is delivered; whoever would be next gets another.
    pub receives_max: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedriveAllowPolicy {
    All,
    None,
    From(Vec<String>),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Redrive {
    dead_letter_target_arn: String,
    max_receive_count: Option<Count>,
}

/// Some clients write the number as a text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Count {
    Number(i64),
    Text(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Allow {
    redrive_permission: Option<String>,
    source_queue_arns: Option<Vec<String>>,
}

impl RedrivePolicy {
    pub fn parse(text: &str) -> Result<Self> {
        let policy: Redrive = serde_json::from_str(text).map_err(|_| {
            bad(REDRIVE_POLICY, "a JSON object with deadLetterTargetArn, the ARN of a queue, and maxReceiveCount")
        })?;
        let receives_max = match policy.max_receive_count {
            None => Some(RECEIVES_USUAL),
            Some(Count::Number(number)) => Some(number),
            Some(Count::Text(text)) => text.parse().ok(),
        };
        let Some(receives_max) = receives_max.filter(|count| (1..=RECEIVES_MAX).contains(count)) else {
            let wanted = format!("an object whose maxReceiveCount is a whole number from 1 to {RECEIVES_MAX}");
            return Err(bad(REDRIVE_POLICY, &wanted));
        };
        Ok(Self { target_arn: policy.dead_letter_target_arn, receives_max })
    }
}

impl RedriveAllowPolicy {
    pub fn parse(text: &str) -> Result<Self> {
        let wanted = "a JSON object whose redrivePermission is allowAll, denyAll or byQueue";
        let policy: Allow = serde_json::from_str(text).map_err(|_| bad(REDRIVE_ALLOW_POLICY, wanted))?;
        match (policy.redrive_permission.as_deref(), policy.source_queue_arns) {
            (None | Some("allowAll"), None) => Ok(Self::All),
            (Some("denyAll"), None) => Ok(Self::None),
            (Some("byQueue"), Some(arns)) if (1..=SOURCES_MAX).contains(&arns.len()) => Ok(Self::From(arns)),
            (Some("byQueue"), _) => {
                let wanted =
                    format!("an object with 1 to {SOURCES_MAX} sourceQueueArns where its permission is byQueue");
                Err(bad(REDRIVE_ALLOW_POLICY, &wanted))
            }
            (_, Some(_)) => Err(bad(REDRIVE_ALLOW_POLICY, "without sourceQueueArns unless its permission is byQueue")),
            (Some(_), None) => Err(bad(REDRIVE_ALLOW_POLICY, wanted)),
        }
    }

    pub fn allows(&self, source_arn: &str) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::From(arns) => arns.iter().any(|arn| arn == source_arn),
        }
    }
}

fn bad(attribute: &str, wanted: &str) -> Error {
    Error::new(Code::InvalidAttributeValue, format!("{attribute} must be {wanted}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redrive_policy_names_a_queue_and_a_count() {
        for (text, count) in [
            (r#"{"deadLetterTargetArn":"a","maxReceiveCount":3}"#, 3),
            (r#"{"deadLetterTargetArn":"a","maxReceiveCount":"1000"}"#, 1_000),
            (r#"{"maxReceiveCount":1,"deadLetterTargetArn":"a","more":true}"#, 1),
            (r#"{"deadLetterTargetArn":"a"}"#, 10),
        ] {
            let policy = RedrivePolicy { target_arn: "a".to_owned(), receives_max: count };
            assert_eq!(RedrivePolicy::parse(text).unwrap(), policy, "{text}");
        }
        for bad in [
            "",
            "{}",
            "[]",
            "not json",
            r#"{"maxReceiveCount":3}"#,
            r#"{"deadLetterTargetArn":7,"maxReceiveCount":3}"#,
            r#"{"deadLetterTargetArn":"a","maxReceiveCount":0}"#,
            r#"{"deadLetterTargetArn":"a","maxReceiveCount":1001}"#,
            r#"{"deadLetterTargetArn":"a","maxReceiveCount":"many"}"#,
            r#"{"deadLetterTargetArn":"a","maxReceiveCount":1.5}"#,
        ] {
            assert_eq!(RedrivePolicy::parse(bad).unwrap_err().code(), Code::InvalidAttributeValue, "{bad}");
        }
    }

    #[test]
    fn an_allow_policy_says_from_where() {
        let by = |arns: &[&str]| RedriveAllowPolicy::From(arns.iter().map(|arn| (*arn).to_owned()).collect());
        for (text, policy) in [
            ("{}", RedriveAllowPolicy::All),
            (r#"{"redrivePermission":"allowAll"}"#, RedriveAllowPolicy::All),
            (r#"{"redrivePermission":"denyAll"}"#, RedriveAllowPolicy::None),
            (r#"{"redrivePermission":"byQueue","sourceQueueArns":["a","b"]}"#, by(&["a", "b"])),
        ] {
            assert_eq!(RedriveAllowPolicy::parse(text).unwrap(), policy, "{text}");
        }
        let many = format!(r#"{{"redrivePermission":"byQueue","sourceQueueArns":{:?}}}"#, vec!["a"; 11]);
        for bad in [
            "",
            "[]",
            r#"{"redrivePermission":"some"}"#,
            r#"{"redrivePermission":"byQueue"}"#,
            r#"{"redrivePermission":"byQueue","sourceQueueArns":[]}"#,
            r#"{"redrivePermission":"allowAll","sourceQueueArns":["a"]}"#,
            r#"{"sourceQueueArns":["a"]}"#,
            &many,
        ] {
            assert_eq!(RedriveAllowPolicy::parse(bad).unwrap_err().code(), Code::InvalidAttributeValue, "{bad}");
        }
        assert!(RedriveAllowPolicy::All.allows("a") && !RedriveAllowPolicy::None.allows("a"));
        assert!(by(&["a"]).allows("a") && !by(&["a"]).allows("b"));
    }
}
