//! One file per operation.

mod create_webhook;
mod delete_webhook;
mod enable_webhook;
mod list_webhook_deliveries;
mod list_webhooks;
mod redeliver_webhook;

pub use create_webhook::{CreateWebhook, CreatedWebhook};
pub use delete_webhook::{DeleteWebhook, DeletedWebhook};
pub use enable_webhook::{EnableWebhook, EnabledWebhook};
pub use list_webhook_deliveries::{ListWebhookDeliveries, WebhookDeliveries};
pub use list_webhooks::{ListWebhooks, Webhooks};
pub use redeliver_webhook::{RedeliverWebhook, Redelivered};
