//! The metrics of webhooks, each with its unit and meaning.

use metrics::describe_counter;

pub(crate) const ATTEMPTS: &str = "waybill_webhook_attempts_total";
pub(crate) const FANNED_OUT: &str = "waybill_webhook_deliveries_total";

pub(crate) fn describe() {
    describe_counter!(ATTEMPTS, "Requests to webhooks, by whether they were accepted");
    describe_counter!(FANNED_OUT, "Deliveries to webhooks that receipts have led to");
}
