//! Webhooks: tenants are told of their receipts, and of what happens to their meshes, by signed requests to endpoints of their choice.
//!
//! A feed makes one delivery of each receipt for each endpoint that wants it; deliveries stand in one line per endpoint, and
//! runners work the lines off outside of transactions. An endpoint that is dead holds up its own line and nobody else's.

mod deliver;
mod delivery;
mod event;
mod fan_out;
mod in_hand;
mod metrics;
pub mod ops;
mod post;
mod rules;
mod secret;
mod settings;
mod sweeps;
mod webhook;

pub use deliver::{Deliver, Lines};
pub use delivery::DeliveryView;
pub use fan_out::{FanOut, Meshes, Receipts, Source, Written};
pub use secret::{SECRETS, SecretText};
pub use settings::Settings;
pub use sweeps::Over;
use waybill_store::effects::{Follow, Runner};
use waybill_store::{Domain, Migration, Registry};
pub use webhook::{DeliveryId, WebhookId, WebhookView};

pub const DOMAIN: Domain = Domain {
    name: "webhooks",
    title: "Webhooks",
    mcp: None,
    migrations: MIGRATIONS,
    register,
    sweeps: start,
    audit: &[],
    on_shards: false,
};

const MIGRATIONS: &[Migration] =
    &[Migration { version: 20, name: "webhooks", sql: include_str!("../schema/V0020__webhooks.sql") }];

fn register(registry: Registry) -> Registry {
    registry
        .with::<ops::CreateWebhook>()
        .with::<ops::ListWebhooks>()
        .with::<ops::DeleteWebhook>()
        .with::<ops::EnableWebhook>()
        .with::<ops::ListWebhookDeliveries>()
        .with::<ops::RedeliverWebhook>()
}

fn start(runner: Runner, settings: &waybill_store::Settings) -> Runner {
    let settings: &Settings = settings.get();
    let [healthy, ailing] = deliver::all(settings);
    runner
        .with(Follow(FanOut::new(settings)))
        .with(Follow(FanOut::of_meshes(settings)))
        .with(Over::new(settings))
        .with_outward(healthy)
        .with_outward(ailing)
}
