//! What makes a batch a batch. These checks concern the whole call and need no database.

use std::collections::HashSet;

use schemars::JsonSchema;
use serde::Serialize;
use waybill_kernel::{Code, Error, Result};

/// What one batch may have.
pub const ENTRIES_MAX: usize = 10;
/// The messages of one batch together, in bytes.
pub const BYTES_MAX: usize = 1_048_576;
const ID_CHARS_MAX: usize = 80;

/// An entry that was not carried out, beside others that were.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
#[schemars(inline)]
pub struct Failure {
    pub id: String,
    /// The code of the error as the query protocol has it.
    pub code: String,
    pub message: String,
    /// The sender's fault, and not ours.
    pub sender_fault: bool,
}

/// An entry that was carried out, where there is nothing more to say about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
#[schemars(inline)]
pub struct Done {
    pub id: String,
}

impl Failure {
    pub fn new(id: &str, error: &Error) -> Self {
        let sqs = error.code().entry().sqs;
        Self {
            id: id.to_owned(),
            code: sqs.query_code.to_owned(),
            message: error.message().to_owned(),
            sender_fault: sqs.http < 500,
        }
    }
}

pub fn check_ids<'a>(ids: impl ExactSizeIterator<Item = &'a str>) -> Result<()> {
    if ids.len() == 0 {
        return Err(refused(Code::EmptyBatchRequest));
    }
    if ids.len() > ENTRIES_MAX {
        let message = format!("The batch has {} entries; {ENTRIES_MAX} are allowed.", ids.len());
        return Err(Error::new(Code::TooManyEntriesInBatchRequest, message));
    }
    let mut seen = HashSet::with_capacity(ids.len());
    let mut repeated = None;
    for id in ids {
        if !is_id(id) {
            return Err(refused(Code::InvalidBatchEntryId));
        }
        if !seen.insert(id) {
            repeated.get_or_insert(id);
        }
    }
    match repeated {
        None => Ok(()),
        Some(id) => {
            Err(Error::new(Code::BatchEntryIdsNotDistinct, format!("The batch has two entries with the id {id}.")))
        }
    }
}

/// What the throttle of a queue charges a batch of so many entries.
pub fn tokens(entries: usize) -> u32 {
    u32::try_from(entries).unwrap_or(u32::MAX)
}

pub fn check_bytes(bytes: usize) -> Result<()> {
    if bytes <= BYTES_MAX {
        return Ok(());
    }
    let message = format!("The messages of the batch have {bytes} bytes together; {BYTES_MAX} are allowed.");
    Err(Error::new(Code::BatchRequestTooLong, message).with("limit_bytes", BYTES_MAX))
}

fn is_id(id: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=ID_CHARS_MAX).contains(&id.len()) && id.bytes().all(allowed)
}

fn refused(code: Code) -> Error {
    Error::new(code, code.entry().title)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_one_to_ten_entries_with_ids_of_their_own() {
        let (longest, too_long) = ("i".repeat(80), "i".repeat(81));
        let eleven: Vec<String> = (0..11).map(|number| number.to_string()).collect();
        let eleven: Vec<&str> = eleven.iter().map(String::as_str).collect();
        for (ids, refusal) in [
            (&["a"][..], None),
            (&["a", "B-2_", &longest], None),
            (&eleven[..10], None),
            (&[], Some(Code::EmptyBatchRequest)),
            (&eleven, Some(Code::TooManyEntriesInBatchRequest)),
            (&["a", ""], Some(Code::InvalidBatchEntryId)),
            (&["a", "b c"], Some(Code::InvalidBatchEntryId)),
            (&["ä"], Some(Code::InvalidBatchEntryId)),
            (&[&too_long], Some(Code::InvalidBatchEntryId)),
            (&["a", "b", "a"], Some(Code::BatchEntryIdsNotDistinct)),
        ] {
            let found = check_ids(ids.iter().copied()).err().map(|error| error.code());
            assert_eq!(found, refusal, "{ids:?}");
        }
        assert!(check_bytes(BYTES_MAX).is_ok());
        assert_eq!(check_bytes(BYTES_MAX + 1).unwrap_err().code(), Code::BatchRequestTooLong);
    }

    #[test]
    fn a_failure_says_whose_fault_it_is() {
        let theirs = Failure::new("a", &Error::new(Code::MessageNotInflight, "It is not in flight."));
        assert_eq!(theirs.code, "AWS.SimpleQueueService.MessageNotInflight");
        assert!(theirs.sender_fault && !Failure::new("a", &Error::internal("disk")).sender_fault);
    }
}
