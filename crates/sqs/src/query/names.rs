//! What the Query protocol calls the lists and maps of SQS. The typed requests and answers have the names of the JSON
//! protocol, which are in the plural; Query writes each element under a name in the singular, with no list around them.
//!
//! ```text
//! "AttributeNames": ["All"]               AttributeName.1=All
//! "Attributes": {"DelaySeconds": "5"}     Attribute.1.Name=DelaySeconds&Attribute.1.Value=5
//! "Messages": [{"Body": "a"}]             <Message><Body>a</Body></Message>
//! ```

use std::borrow::Cow;

/// The part of a map's entry that holds what the key stands for.
pub(super) const VALUE: &str = "Value";

/// The name of one element of the list or map `member`. Whatever is neither keeps its name.
pub(super) fn element<'a>(member: &'a str, action: &str) -> Cow<'a, str> {
    Cow::Borrowed(match member {
        "Actions" => "ActionName",
        "AttributeNames" => "AttributeName",
        "Attributes" => "Attribute",
        "AWSAccountIds" => "AWSAccountId",
        "BinaryListValues" => "BinaryListValue",
        "Failed" => "BatchResultErrorEntry",
        "MessageAttributeNames" => "MessageAttributeName",
        "MessageAttributes" => "MessageAttribute",
        "MessageSystemAttributeNames" => "MessageSystemAttributeName",
        "MessageSystemAttributes" => "MessageSystemAttribute",
        "Messages" => "Message",
        "QueueUrls" | "queueUrls" => "QueueUrl",
        "Results" => "ListMessageMoveTasksResultEntry",
        "StringListValues" => "StringListValue",
        "TagKeys" => "TagKey",
        "Tags" | "tags" => "Tag",
        // Those of a batch are called after its action.
        "Entries" => return Cow::Owned(format!("{action}RequestEntry")),
        "Successful" => return Cow::Owned(format!("{action}ResultEntry")),
        _ => member,
    })
}

/// Whether a member is a map, by keys that clients choose. What serde writes as a map otherwise is a struct: one that has
/// taken the members of another into itself.
pub(super) fn is_map(member: &str) -> bool {
    matches!(member, "Attributes" | "MessageAttributes" | "MessageSystemAttributes" | "Tags" | "tags")
}

/// The part of a map's entry that holds its key, by the name of the entry.
pub(super) fn key(element: &str) -> &'static str {
    if element == "Tag" { "Key" } else { "Name" }
}

/// Whether an answer has a `{Action}Result`. Those that have nothing to say leave it out.
pub(super) fn has_result(action: &str) -> bool {
    !matches!(
        action,
        "AddPermission"
            | "ChangeMessageVisibility"
            | "DeleteMessage"
            | "DeleteQueue"
            | "PurgeQueue"
            | "RemovePermission"
            | "SetQueueAttributes"
            | "TagQueue"
            | "UntagQueue"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_called_after_their_action() {
        for (action, request, result) in [
            ("SendMessageBatch", "SendMessageBatchRequestEntry", "SendMessageBatchResultEntry"),
            ("DeleteMessageBatch", "DeleteMessageBatchRequestEntry", "DeleteMessageBatchResultEntry"),
            (
                "ChangeMessageVisibilityBatch",
                "ChangeMessageVisibilityBatchRequestEntry",
                "ChangeMessageVisibilityBatchResultEntry",
            ),
        ] {
            assert_eq!((element("Entries", action), element("Successful", action)), (request.into(), result.into()));
            assert_eq!(element("Failed", action), "BatchResultErrorEntry");
        }
        assert_eq!(element("QueueUrl", "GetQueueUrl"), "QueueUrl");
    }

    #[test]
    fn only_tags_have_keys() {
        assert_eq!((key("Tag"), key("Attribute"), key("MessageAttribute")), ("Key", "Name", "Name"));
    }
}
