//! What happens to the mesh, and the keys of its topics: an open socket is told, asked for keys that its member is to make, and given
//! those that were made.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use waybill_kernel::{Code, Result as Outcome};
use waybill_mesh::ops::topics::WORK_PAGE_MAX;
use waybill_mesh_protocol::frames::Refused;
use waybill_mesh_protocol::{ServerFrame, TopicName};

use super::session::{PAUSE, Session};
use super::wire::Leave;
use crate::broker;
use crate::hub::{Told, What};

/// Events that are told in a row.
const TOLD_IN_A_ROW_MAX: usize = 64;
/// While a member is asked for keys it is looked so often whether they are still wanted: what it has uploaded may be lost.
const WORK_PAUSE: Duration = Duration::from_secs(10);

impl Session<'_> {
    /// What has happened to the mesh, and what has happened meanwhile.
    pub(super) async fn tell(&mut self, first: Arc<Told>) -> Result<(), Leave> {
        let (mut told, mut is_asked) = (first, false);
        for left in (0..TOLD_IN_A_ROW_MAX).rev() {
            match &told.what {
                What::Frame(_) if told.about == Some(self.member.member) => {
                    self.member.key = told.new_key.unwrap_or(self.member.key);
                }
                What::Frame(text) => self.socket.feed_text(text.clone()).await?,
                What::KeyWanted { minter } => is_asked |= *minter == self.member.member,
                What::KeyThere { topic, epoch } => is_asked |= self.give_key(topic, *epoch).await?,
            }
            // Nothing is taken that would not be told.
            let next = if left > 0 { self.listening.more() } else { None };
            let Some(next) = next else { break };
            told = next;
        }
        // Once for all of them: it finds whatever is wanted.
        if is_asked { self.find_work().await } else { Ok(()) }
    }

    /// Asks the member for keys that it is to make. So many at a time; those that it was asked for lately are passed over, so that
    /// one which it cannot make keeps it from no other.
    pub(super) async fn find_work(&mut self) -> Result<(), Leave> {
        if self.member.plaintext {
            return Ok(());
        }
        let (mut after, mut wanted_now) = (None, BTreeSet::new());
        loop {
            let wanted = match broker::epoch_work(self.door, &self.member, after).await {
                Ok(wanted) => wanted,
                Err(error) => {
                    tracing::debug!(%error, "which keys are wanted could not be read; it is tried again");
                    self.work_at = Some(Instant::now() + PAUSE);
                    return Ok(());
                }
            };
            after = wanted.last().map(|wanted| wanted.topic.clone());
            let (is_last, mut is_asked) = (wanted.len() < WORK_PAGE_MAX, false);
            for wanted in wanted {
                wanted_now.insert(wanted.topic.clone());
                if self.minting.asks(&wanted, Instant::now()) {
                    is_asked = true;
                    self.socket.feed(&ServerFrame::EpochWanted(wanted).into()).await?;
                }
            }
            if is_last {
                self.minting.keep(&wanted_now);
            }
            if is_last || is_asked || self.minting.is_full() {
                break;
            }
        }
        self.work_at = (!self.minting.is_empty()).then(|| Instant::now() + WORK_PAUSE);
        Ok(())
    }

    /// What became of boxes that the member has uploaded.
    pub(super) async fn uploaded(
        &mut self,
        topic: &TopicName,
        epoch: u32,
        outcome: Outcome<bool>,
    ) -> Result<(), Leave> {
        let is_switched = matches!(outcome, Ok(true));
        if is_switched {
            self.minting.done(topic, epoch);
        } else {
            self.minting.refused(topic, epoch);
        }
        if let Err(error) = &outcome {
            self.socket.feed(&ServerFrame::Error(Refused::from(error)).into()).await?;
        }
        // Boxes that were not enough are asked for again, with whoever has come since. There may be keys that were not yet asked for.
        let is_short = matches!(outcome, Ok(false));
        if is_short || self.minting.wants_more() { self.find_work().await } else { Ok(()) }
    }

    /// True when there may be other keys to make.
    async fn give_key(&mut self, topic: &TopicName, epoch: u32) -> Result<bool, Leave> {
        let is_own = self.minting.done(topic, epoch);
        match broker::epoch_key(self.door, &self.member, topic, epoch).await {
            Ok(keys) => {
                for key in keys {
                    self.socket.feed(&ServerFrame::EpochKey(key).into()).await?;
                }
            }
            // The member asks for what it lacks when it comes again.
            Err(error) if error.code() == Code::MemberRevoked => {}
            Err(error) => self.socket.feed(&ServerFrame::Error(Refused::from(&error)).into()).await?,
        }
        Ok(is_own && self.minting.wants_more())
    }
}
