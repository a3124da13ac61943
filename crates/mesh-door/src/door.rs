//! What all sockets and requests of the mesh share.

use std::sync::Arc;

use waybill_doors::Driver;
use waybill_kernel::{Caller, KeyId, Result, base62};
use waybill_mesh::Membership;
use waybill_mesh_protocol::{Edition, FRAME_BYTES_MAX};
use waybill_store::shares::{Limits, Share, Shares};
use waybill_store::{Procedure, Reply, Store};

use crate::Settings;
use crate::broker::MESSAGE_BYTES_BESIDE;
use crate::files::Uploads;
use crate::hub::Hubs;
use crate::keeper::Keeper;
use crate::replays::Replays;
use crate::unfinished::Unfinished;

/// Room is counted in units of this.
const UNIT_BYTES: usize = 1 << 10;
/// A member's part of all sockets, in percent: what one key has that is allowed several.
const MEMBER_PERCENT: usize = 1;
/// A member's part of the room for frames, in percent.
const MEMBER_ROOM_PERCENT: usize = 25;

/// Messages that are read for a socket at a time, at most: as many as the broker answers with.
const PAGE_MAX: usize = 32;
/// As long as there are no more of them. Less room is taken for each, so that more sockets are served at a time.
pub(crate) const PAGE_USUAL: usize = 8;

pub(crate) struct Door {
    pub(crate) driver: Driver,
    pub(crate) store: Store,
    pub(crate) settings: Settings,
    pub(crate) edition: Edition,
    pub(crate) unfinished: Unfinished,
    pub(crate) hubs: Hubs,
    pub(crate) keeper: Keeper,
    pub(crate) replays: Replays,
    pub(crate) uploads: Uploads,
    /// Of one message on its way out, at most.
    pub(crate) message_bytes: usize,
    /// Messages that are read for a socket at a time, where many wait.
    pub(crate) page: usize,
    /// A member's part of the room for deliveries, in units.
    part: usize,
    sockets: Shares,
    /// For frames that are worked on.
    incoming: Shares,
    /// For frames on their way out. Apart from the others: who waits to be read must not hold up who waits to be answered.
    outgoing: Shares,
}

impl Door {
    pub(crate) fn new(driver: Driver, store: Store, settings: Settings, edition: Edition) -> Arc<Self> {
        let limits = |what, whole, key_percent| Limits {
            what,
            whole,
            kept_for_admins: 0,
            key_percent,
            tenant_percent: settings.sockets_tenant_percent,
        };
        let room = settings.frames_bytes_max / 2 / UNIT_BYTES;
        let inline_bytes = usize::try_from(store.settings().get::<waybill_mesh::Settings>().inline_bytes);
        // A body is in base64.
        let message_bytes = inline_bytes.unwrap_or(usize::MAX).saturating_mul(4) / 3;
        let message_bytes = message_bytes.saturating_add(MESSAGE_BYTES_BESIDE).min(FRAME_BYTES_MAX);
        // A member's part has room for a page and for the one that shows that there are more, whatever the settings say.
        let part = room * MEMBER_ROOM_PERCENT / 100;
        let messages = part * UNIT_BYTES / message_bytes;
        Arc::new(Self {
            unfinished: Unfinished::new(settings.challenges_max, settings.challenges_per_address_max),
            hubs: Hubs::default(),
            keeper: Keeper::default(),
            replays: Replays::default(),
            uploads: Uploads::default(),
            message_bytes,
            page: messages.saturating_sub(1).clamp(1, PAGE_MAX),
            part,
            sockets: Shares::new(limits("sockets", settings.sockets_max, MEMBER_PERCENT)),
            incoming: Shares::new(limits("room for frames, in KiB", room, MEMBER_ROOM_PERCENT)),
            outgoing: Shares::new(limits("room for deliveries, in KiB", room, MEMBER_ROOM_PERCENT)),
            driver,
            store,
            settings,
            edition,
        })
    }

    /// A place for one more socket of the member.
    pub(crate) fn place(&self, member: &Membership) -> Result<Share> {
        self.sockets.try_take(&charged(member), 1)
    }

    pub(crate) async fn room_for_frame(&self, charged: &Caller, bytes: usize) -> Result<Share> {
        self.incoming.take(charged, bytes.div_ceil(UNIT_BYTES)).await
    }

    /// At once or not at all: for so many messages, and the one that shows that there are more.
    pub(crate) fn room_for_page(&self, charged: &Caller, messages: usize) -> Result<Share> {
        let units = (messages + 1).saturating_mul(self.message_bytes).div_ceil(UNIT_BYTES);
        self.outgoing.try_take(charged, units.min(self.part.max(1)))
    }

    pub(crate) async fn room_for_deliveries(&self, charged: &Caller, bytes: usize) -> Result<Share> {
        self.outgoing.take(charged, bytes.div_ceil(UNIT_BYTES)).await
    }

    /// One call in a member's name, with the turn of a read.
    pub(crate) async fn run<P: Procedure>(&self, caller: &Caller, procedure: P) -> Result<(P::Output, Option<Share>)> {
        let (reply, turn) = self.driver.admit(const { &P::SPEC }, caller)?.run(procedure).await?;
        Ok((output(reply), turn))
    }
}

pub(crate) fn output<T>(reply: Reply<T>) -> T {
    match reply {
        Reply::Done(output) | Reply::Replay(output) | Reply::Empty { answer: output, .. } => output,
    }
}

/// Who pays for what a member takes: shares are of keys, and a member is as good as one.
pub(crate) fn charged(member: &Membership) -> Caller {
    let mut key = [0; KeyId::CHARS];
    // The end of an id is its random part.
    let random = member.member.as_bytes().iter().rev();
    for (char, byte) in key.iter_mut().zip(random) {
        *char = base62::ALPHABET[usize::from(*byte) % base62::ALPHABET.len()];
    }
    Caller { key: KeyId::from_ascii(&key), ..member.caller.clone() }
}
