//! Deliveries of an open socket: looked for when there may be some and there is room for them, and pushed page by page.

use std::time::{Duration, Instant};

use waybill_kernel::{Code, Error};
use waybill_mesh_protocol::ServerFrame;
use waybill_store::shares::Share;

use super::session::{PAUSE, Session, flags, revoked};
use super::state::IsFirst;
use super::wire::Leave;
use crate::door::PAGE_USUAL;
use crate::{broker, metrics};

/// While others have the room for deliveries. Frames are read meanwhile, and nothing is lost.
const ROOM_PAUSE: Duration = Duration::from_millis(50);
/// A window that is full is looked at so much later: it is known that there is more, and whatever else a wake is about can wait.
const FULL_PAUSE: Duration = Duration::from_millis(50);
/// For acknowledgements that come after the first, so that what they make room for is read together.
const LOT_PAUSE: Duration = Duration::from_millis(10);
/// A number that no message has: there is nothing to be read after it.
const NOTHING_AFTER: u64 = i64::MAX as u64;

impl Session<'_> {
    /// There may be something for the member.
    pub(super) fn look(&mut self) -> Result<(), Leave> {
        let pause = if self.is_behind { FULL_PAUSE } else { Duration::ZERO };
        self.look_at = Some(Instant::now() + pause);
        Ok(())
    }

    /// Something was acknowledged, and so there may be room for what had to wait.
    pub(super) fn look_on(&mut self) {
        if !self.is_behind || self.window.room() == 0 {
            return;
        }
        let pause = if self.window.is_roomy(self.door.page) { Duration::ZERO } else { LOT_PAUSE };
        let at = Instant::now() + pause;
        self.look_at = Some(self.look_at.map_or(at, |before| before.min(at)));
    }

    pub(super) fn may_push(&self) -> bool {
        self.look_at.is_some_and(|at| at <= Instant::now())
    }

    /// A page of what was committed for the member, from where the last one has ended. Also finds out whether this is still the
    /// member's connection, so it is not left out when nothing can be pushed.
    pub(super) async fn push(&mut self) -> Result<(), Leave> {
        let reads = self.window.room() > 0 || self.window.is_rewound();
        // Not waited for: a page of history that this socket is about to be given may have the room.
        let Some((page, _room)) = self.page() else {
            self.look_at = Some(Instant::now() + ROOM_PAUSE);
            return Ok(());
        };
        self.flags = flags(self.door, &self.member);
        let after = if reads { self.window.after() } else { NOTHING_AFTER };
        let found = match broker::deliveries(self.door, &self.member, self.connection, after, page).await {
            Ok(found) => found,
            Err(error) if error.code() == Code::MemberRevoked => return Err(revoked(self.socket, &self.member).await),
            Err(error) => return self.look_later(&error),
        };
        if let Some(code) = found.end {
            return Err(Leave::Close(code));
        }
        (self.look_at, self.is_behind) = (None, !reads);
        if reads {
            self.push_found(after, found).await?;
        }
        // All of them at once, and before their room is given back.
        self.socket.flush().await
    }

    /// How many are read, with the room for them: no more than the window takes, and fewer where there is no room for many.
    fn page(&self) -> Option<(usize, Share)> {
        let most = if self.is_busy { self.door.page } else { self.door.page.min(PAGE_USUAL) };
        let most = if self.window.is_rewound() { most } else { most.min(self.window.room().max(1)) };
        let taken = |page: usize| self.door.room_for_page(&self.charged, page).ok().map(|room| (page, room));
        taken(most).or_else(|| taken(most.min(PAGE_USUAL)))
    }

    async fn push_found(&mut self, after: u64, found: broker::Found) -> Result<(), Leave> {
        let seqs: Vec<u64> = found.deliveries.iter().map(|delivery| delivery.message.seq).collect();
        let end = if found.more { seqs.last().copied().unwrap_or(after) } else { u64::MAX };
        self.is_busy = found.more || seqs.len() > PAGE_USUAL;
        self.window.forget_missing(after, end, &seqs);
        for delivery in found.deliveries {
            let (seq, id) = (delivery.message.seq, delivery.delivery_id);
            if !self.window.has_room_for(seq) {
                self.is_behind = true;
                return Ok(());
            }
            let Some(IsFirst(is_first)) = self.window.offer(seq, id, Instant::now()) else { continue };
            self.socket.feed(&ServerFrame::Deliver(Box::new(delivery)).into()).await?;
            metrics::pushed(is_first);
        }
        if found.more && (self.window.room() > 0 || self.window.is_rewound()) {
            self.look_at = Some(Instant::now());
        } else {
            self.is_behind = found.more;
        }
        Ok(())
    }

    fn look_later(&mut self, error: &Error) -> Result<(), Leave> {
        tracing::debug!(%error, "deliveries could not be read; it is tried again");
        self.look_at = Some(Instant::now() + PAUSE);
        Ok(())
    }
}
