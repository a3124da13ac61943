//! Permissions, which stand as statements in a queue's `Policy`. They are kept and shown; who may do what is decided by
//! the keys of the server.

use serde_json::{Map, Value, json};
use waybill_kernel::{Code, Error, Result};

use super::missing;
use super::names::is_account;

const LABEL_CHARS_MAX: usize = 80;
const ACTIONS_MAX: usize = 7;
/// As many principals as AWS allows a whole policy.
const ACCOUNTS_MAX: usize = 50;
const STATEMENTS_MAX: usize = 20;

/// What may be permitted to others.
const ACTIONS: &[&str] = &[
    "*",
    "ChangeMessageVisibility",
    "DeleteMessage",
    "GetQueueAttributes",
    "GetQueueUrl",
    "ListDeadLetterSourceQueues",
    "PurgeQueue",
    "ReceiveMessage",
    "SendMessage",
];

#[derive(Clone, Copy, Debug)]
pub struct Permission<'a> {
    pub label: &'a str,
    pub accounts: &'a [String],
    pub actions: &'a [String],
}

impl Permission<'_> {
    /// How many there are comes first: each of them is compared with what it may be.
    pub fn check(&self) -> Result<()> {
        let (accounts, actions) = (self.accounts.len(), self.actions.len());
        for (what, count, max) in [("accounts", accounts, ACCOUNTS_MAX), ("actions", actions, ACTIONS_MAX)] {
            if count > max {
                let message = format!("A permission has at most {max} {what}.");
                return Err(over_limit(&message).with_cure("Split it into several permissions."));
            }
        }
        check_label(self.label)?;
        if self.accounts.is_empty() {
            return Err(missing("AWSAccountIds"));
        }
        if self.actions.is_empty() {
            return Err(missing("Actions"));
        }
        if let Some(bad) = self.accounts.iter().find(|account| !is_account(account)) {
            let bad: String = bad.chars().take(80).collect();
            return Err(Error::invalid(format!("The account id {bad:?} is not one of 12 digits.")));
        }
        if let Some(bad) = self.actions.iter().find(|action| !ACTIONS.contains(&action.as_str())) {
            let bad: String = bad.chars().take(80).collect();
            return Err(Error::invalid(format!("The action {bad:?} is not one that can be permitted.")));
        }
        Ok(())
    }
}

pub fn check_label(label: &str) -> Result<()> {
    if label.is_empty() {
        return Err(missing("Label"));
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if label.len() > LABEL_CHARS_MAX || !label.bytes().all(allowed) {
        return Err(Error::invalid(format!(
            "Label has 1 to {LABEL_CHARS_MAX} letters, digits, hyphens and underscores."
        )));
    }
    Ok(())
}

/// The policy with a statement more. `policy` is empty where there is none.
pub fn with(policy: &str, permission: &Permission<'_>, queue_arn: &str) -> Result<String> {
    let (mut policy, mut statements) = read(policy, queue_arn)?;
    if statements.iter().any(|statement| is_of(statement, permission.label)) {
        return Err(Error::invalid(format!("The queue has a permission {:?} already.", permission.label)));
    }
    if statements.len() >= STATEMENTS_MAX {
        return Err(over_limit(&format!("A queue has at most {STATEMENTS_MAX} permissions.")));
    }
    let principals: Vec<_> =
        permission.accounts.iter().map(|account| json!(format!("arn:aws:iam::{account}:root"))).collect();
    let actions: Vec<_> = permission.actions.iter().map(|action| json!(format!("SQS:{action}"))).collect();
    statements.push(json!({
        "Sid": permission.label,
        "Effect": "Allow",
        "Principal": { "AWS": one_or_many(principals) },
        "Action": one_or_many(actions),
        "Resource": queue_arn,
    }));
    policy.insert(STATEMENT.to_owned(), Value::Array(statements));
    Ok(Value::Object(policy).to_string())
}

/// The policy without the statement of that label; empty when none is left.
pub fn without(policy: &str, label: &str, queue_arn: &str) -> Result<String> {
    let (mut policy, mut statements) = read(policy, queue_arn)?;
    let before = statements.len();
    statements.retain(|statement| !is_of(statement, label));
    if statements.len() == before {
        return Err(Error::invalid(format!("The queue has no permission {label:?}.")));
    }
    if statements.is_empty() {
        return Ok(String::new());
    }
    policy.insert(STATEMENT.to_owned(), Value::Array(statements));
    Ok(Value::Object(policy).to_string())
}

const STATEMENT: &str = "Statement";

fn read(policy: &str, queue_arn: &str) -> Result<(Map<String, Value>, Vec<Value>)> {
    if policy.is_empty() {
        let empty = json!({ "Version": "2008-10-17", "Id": format!("{queue_arn}/SQSDefaultPolicy") });
        return Ok((empty.as_object().cloned().unwrap_or_default(), Vec::new()));
    }
    let Ok(Value::Object(mut policy)) = serde_json::from_str(policy) else {
        return Err(Error::invalid("The queue's Policy is not a JSON object, so it cannot have permissions."));
    };
    let statements = match policy.remove(STATEMENT) {
        None => Vec::new(),
        Some(Value::Array(statements)) => statements,
        Some(one) => vec![one],
    };
    Ok((policy, statements))
}

fn is_of(statement: &Value, label: &str) -> bool {
    statement.get("Sid").and_then(Value::as_str) == Some(label)
}

fn one_or_many(mut values: Vec<Value>) -> Value {
    if values.len() == 1 { values.remove(0) } else { Value::Array(values) }
}

fn over_limit(message: &str) -> Error {
    Error::new(Code::OverLimit, message).with_cure("Remove permissions that are not needed.")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARN: &str = "arn:aws:sqs:us-east-1:000000000000:jobs";

    fn list(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn a_statement_is_added_and_taken_away_and_the_others_stay() {
        let (accounts, actions) = (list(&["123456789012"]), list(&["SendMessage", "ReceiveMessage"]));
        let permission = Permission { label: "one", accounts: &accounts, actions: &actions };
        permission.check().unwrap();
        let one = with("", &permission, ARN).unwrap();
        let read: Value = serde_json::from_str(&one).unwrap();
        assert_eq!(read["Id"], json!(format!("{ARN}/SQSDefaultPolicy")));
        assert_eq!(
            read["Statement"][0],
            json!({
                "Sid": "one", "Effect": "Allow", "Resource": ARN,
                "Principal": { "AWS": "arn:aws:iam::123456789012:root" },
                "Action": ["SQS:SendMessage", "SQS:ReceiveMessage"],
            })
        );
        assert_eq!(with(&one, &permission, ARN).unwrap_err().code(), Code::InvalidRequest);
        let two = with(&one, &Permission { label: "two", ..permission }, ARN).unwrap();
        assert_eq!(without(&two, "two", ARN).unwrap(), one);
        assert_eq!(without(&one, "one", ARN).unwrap(), "");
        assert_eq!(without(&one, "two", ARN).unwrap_err().code(), Code::InvalidRequest);
    }

    #[test]
    fn a_policy_of_somebody_elses_making_is_respected() {
        let (accounts, actions) = (list(&["123456789012"]), list(&["*"]));
        let permission = Permission { label: "one", accounts: &accounts, actions: &actions };
        let foreign = r#"{"Version":"2012-10-17","Statement":{"Sid":"theirs","Effect":"Deny"}}"#;
        let both: Value = serde_json::from_str(&with(foreign, &permission, ARN).unwrap()).unwrap();
        assert_eq!(
            (both["Statement"][0]["Sid"].as_str(), both["Version"].as_str()),
            (Some("theirs"), Some("2012-10-17"))
        );
        assert_eq!(with("plain text", &permission, ARN).unwrap_err().code(), Code::InvalidRequest);
        let mut full = String::new();
        for number in 0..STATEMENTS_MAX {
            full = with(&full, &Permission { label: &format!("l{number}"), ..permission }, ARN).unwrap();
        }
        assert_eq!(with(&full, &permission, ARN).unwrap_err().code(), Code::OverLimit);
    }

    #[test]
    fn a_permission_has_its_bounds() {
        let (long, eight) = ("l".repeat(81), list(&["SendMessage"; 8]));
        for (label, accounts, actions, code) in [
            ("", list(&["123456789012"]), list(&["*"]), Code::MissingParameter),
            ("a b", list(&["123456789012"]), list(&["*"]), Code::InvalidRequest),
            (&long, list(&["123456789012"]), list(&["*"]), Code::InvalidRequest),
            ("l", vec![], list(&["*"]), Code::MissingParameter),
            ("l", list(&["12345"]), list(&["*"]), Code::InvalidRequest),
            ("l", list(&["123456789012"]), vec![], Code::MissingParameter),
            ("l", list(&["123456789012"]), list(&["CreateQueue"]), Code::InvalidRequest),
            ("l", list(&["123456789012"]), eight, Code::OverLimit),
            // They are counted before they are looked at.
            ("l", list(&["123456789012"; 51]), list(&["*"]), Code::OverLimit),
            ("l", list(&["12345"; 51]), list(&["*"]), Code::OverLimit),
            ("l", list(&["123456789012"]), list(&["CreateQueue"; 8]), Code::OverLimit),
        ] {
            let permission = Permission { label, accounts: &accounts, actions: &actions };
            assert_eq!(permission.check().unwrap_err().code(), code, "{label}");
        }
        let (accounts, actions) = (list(&["123456789012"; 50]), list(&["SendMessage"; 7]));
        Permission { label: "l", accounts: &accounts, actions: &actions }.check().unwrap();
    }
}
