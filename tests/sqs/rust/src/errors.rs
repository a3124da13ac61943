//! Errors are told apart by the SDK's own predicates, which go by the code in `x-amzn-query-error`.

use aws_sdk_sqs::error::ProvideErrorMetadata;
use aws_sdk_sqs::types::{QueueAttributeName, SendMessageBatchRequestEntry};

use crate::{Outcome, Running, client, fresh_name, given, new_queue, receive, same, start, told};

pub fn start(running: &mut Running) {
    start! { running:
        errors_of_queues_are_told_apart,
        errors_of_messages_are_told_apart,
        errors_of_batches_are_told_apart,
    }
}

/// Refused, and so that this predicate of the SDK holds; its status and its code as well.
macro_rules! refused {
    ($call:expr, $predicate:ident, $status:expr) => {
        match $call.send().await {
            Ok(answer) => return Err(format!("this was not refused: {answer:?}")),
            Err(error) => {
                let status = error.raw_response().map(|response| response.status().as_u16());
                let service = error.into_service_error();
                if !service.$predicate() || status != Some($status) {
                    return Err(format!("{} does not hold of {status:?} {service:?}", stringify!($predicate)));
                }
                same!(service.message().is_some_and(|message| !message.is_empty()), true);
            }
        }
    };
}

async fn errors_of_queues_are_told_apart() -> Outcome {
    let sqs = client();
    let url = new_queue(&sqs, "", &[]).await?;
    let (name, none) = (url.rsplit('/').next().unwrap_or_default(), format!("{url}-not"));
    refused!(sqs.get_queue_url().queue_name(fresh_name("")), is_queue_does_not_exist, 400);
    refused!(sqs.send_message().queue_url(&none).message_body("m"), is_queue_does_not_exist, 400);
    refused!(sqs.receive_message().queue_url(&none), is_queue_does_not_exist, 400);
    refused!(sqs.delete_queue().queue_url(&none), is_queue_does_not_exist, 400);
    let create = |name: &str| sqs.create_queue().queue_name(name);
    refused!(create(name).attributes(QueueAttributeName::DelaySeconds, "9"), is_queue_name_exists, 400);
    let other = fresh_name("");
    refused!(create(&other).attributes("Colour".into(), "blue"), is_invalid_attribute_name, 400);
    refused!(create(&other).attributes(QueueAttributeName::DelaySeconds, "901"), is_invalid_attribute_value, 400);
    sqs.purge_queue().queue_url(&url).send().await.map_err(told)?;
    refused!(sqs.purge_queue().queue_url(&url), is_purge_queue_in_progress, 403);
    let arn = "arn:aws:sqs:us-east-1:000000000000:none";
    refused!(sqs.start_message_move_task().source_arn(arn), is_resource_not_found_exception, 404);
    Ok(())
}

async fn errors_of_messages_are_told_apart() -> Outcome {
    let sqs = client();
    let url = new_queue(&sqs, "", &[]).await?;
    refused!(sqs.send_message().queue_url(&url).message_body("\u{1}"), is_invalid_message_contents, 400);
    refused!(sqs.delete_message().queue_url(&url).receipt_handle("x"), is_receipt_handle_is_invalid, 404);
    sqs.send_message().queue_url(&url).message_body("m").send().await.map_err(told)?;
    let messages = receive(&sqs, &url).await?;
    let handle = given(messages.first().and_then(|message| message.receipt_handle()), "the handle")?;
    let change =
        |seconds| sqs.change_message_visibility().queue_url(&url).receipt_handle(&handle).visibility_timeout(seconds);
    change(0).send().await.map_err(told)?;
    refused!(change(5), is_message_not_inflight, 400);
    // Not in the SDK's list, so known by its code alone.
    let beyond = sqs.receive_message().queue_url(&url).max_number_of_messages(11).send().await;
    same!(beyond.err().and_then(|error| error.code().map(str::to_owned)).as_deref(), Some("InvalidParameterValue"));
    Ok(())
}

async fn errors_of_batches_are_told_apart() -> Outcome {
    let sqs = client();
    let url = new_queue(&sqs, "", &[]).await?;
    let entry = |id: &str, bytes: usize| {
        let entry = SendMessageBatchRequestEntry::builder().id(id).message_body("x".repeat(bytes));
        entry.build().map_err(|error| error.to_string())
    };
    let batch = |entries: Vec<SendMessageBatchRequestEntry>| {
        sqs.send_message_batch().queue_url(&url).set_entries(Some(entries))
    };
    refused!(batch(Vec::new()), is_empty_batch_request, 400);
    refused!(batch(vec![entry("a", 1)?, entry("a", 1)?]), is_batch_entry_ids_not_distinct, 400);
    refused!(batch(vec![entry("not an id", 1)?]), is_invalid_batch_entry_id, 400);
    let many: Outcome<Vec<_>> = (0..11).map(|number| entry(&format!("e{number}"), 1)).collect();
    refused!(batch(many?), is_too_many_entries_in_batch_request, 400);
    let large = vec![entry("a", 400_000)?, entry("b", 400_000)?, entry("c", 400_000)?];
    refused!(batch(large), is_batch_request_too_long, 400);
    let nothing = sqs.receive_message().queue_url(&url).send().await.map_err(told)?;
    same!(nothing.messages, None);
    Ok(())
}
