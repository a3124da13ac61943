//! Envelopes made anew for messages that were never sent, because keys are others now: a recipient's, a topic's, or this member's own.
//!
//! A message that may have been sent is not touched: another envelope under its id would be another message. It leaves as it was
//! sealed, and its receivers know the keys that it was sealed and signed with as ones that this member had.

use futures_util::future::try_join_all;
use waybill_kernel::{Error, Result};
use waybill_mesh_protocol::{DestinationKind, KeyId};

use crate::outbox::{Outbox, Unsent};
use crate::seal::{Draft, Sealer};

/// Messages that are sealed anew between two looks at the outbox, and share its commits.
const PAGE: usize = 64;

#[derive(Clone)]
pub struct Resealer {
    outbox: Outbox,
    sealer: Sealer,
}

impl Resealer {
    pub fn new(outbox: Outbox, sealer: Sealer) -> Self {
        Self { outbox, sealer }
    }

    /// What waits for one destination.
    pub async fn destination(&self, kind: &str, reference: &str) -> Result<()> {
        if self.sealer.is_plaintext() { Ok(()) } else { self.line(kind, reference, None).await }
    }

    /// Direct messages that were sealed for another key than their recipient has now. It may have rotated while this daemon was
    /// away, or a crash may have come between the new key and the new envelopes, so the rows themselves say which they are.
    pub async fn direct_messages(&self) -> Result<()> {
        if self.sealer.is_plaintext() {
            return Ok(());
        }
        for (kind, reference) in self.outbox.destinations().await? {
            if kind == DestinationKind::Dm.name()
                && let Some(key) = self.sealer.recipients_key(&reference)
            {
                self.line(&kind, &reference, Some(key)).await?;
            }
        }
        Ok(())
    }

    /// `but_for`: what is sealed for this key stays as it is.
    async fn line(&self, kind: &str, reference: &str, but_for: Option<KeyId>) -> Result<()> {
        let but_for = but_for.map(|key| key.to_string());
        let mut after = 0;
        loop {
            let page = self.outbox.unsent(kind, reference, but_for.as_deref(), after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.id;
            try_join_all(page.iter().map(|unsent| self.one(unsent))).await?;
        }
    }

    /// What waits for any.
    pub async fn everything(&self) -> Result<()> {
        if self.sealer.is_plaintext() {
            return Ok(());
        }
        for (kind, reference) in self.outbox.destinations().await? {
            self.destination(&kind, &reference).await?;
        }
        Ok(())
    }

    async fn one(&self, unsent: &Unsent) -> Result<()> {
        let id = &unsent.client_message_id;
        let sealed = serde_json::from_str::<Draft>(&unsent.request)
            .map_err(Error::internal)
            .and_then(|draft| self.sealer.seal(id, &draft));
        match sealed {
            Ok(parcel) => self.outbox.reseal(unsent.id, parcel).await.map(drop),
            Err(error) => {
                tracing::warn!(message.id = id, %error, "a message could not be sealed anew and is sent as it is");
                Ok(())
            }
        }
    }
}
