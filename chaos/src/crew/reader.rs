//! An agent that reads its receipts and acknowledges some: a receipt about a receipt, which must end nothing.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use tokio::time::sleep;

use super::Shared;
use crate::checker::Violation;
use crate::client::{Client, Endpoint};
use crate::rng::Rng;

const PAUSE: Duration = Duration::from_millis(100);
const PAGE: u32 = 50;
/// One receipt in this many is acknowledged.
const ACK_ONE_IN: u64 = 5;

pub struct Reader {
    shared: Shared,
    key: String,
    rng: Rng,
}

impl Reader {
    pub fn new(shared: Shared, key: String, rng: Rng) -> Self {
        Reader { shared, key, rng }
    }

    pub async fn run(mut self) -> Result<Vec<Violation>> {
        let mut since = String::new();
        while !self.shared.stopped() {
            sleep(PAUSE).await;
            let Some(addr) = self.shared.board.pick(&mut self.rng) else { continue };
            let mut client = Client::new(Endpoint { addr, key: self.key.clone() });
            let page = client.get(&format!("/v1/receipts?limit={PAGE}{since}")).await;
            let Ok(page) = page else { continue };
            for receipt in page.body["receipts"].as_array().into_iter().flatten() {
                let Some(id) = receipt["receipt_id"].as_str() else { continue };
                since = format!("&since_receipt_id={id}");
                if self.rng.below(ACK_ONE_IN) == 0 && !self.shared.stopped() {
                    // Whether it was taken is of no consequence: nothing follows from an acknowledgement.
                    let _ = client.post(&format!("/v1/receipts/{id}/ack"), &json!({})).await;
                }
            }
        }
        Ok(Vec::new())
    }
}
