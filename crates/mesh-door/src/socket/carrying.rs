//! The work that a member's frames ask for, each a task of its own.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use waybill_kernel::{Caller, Error, Result as Outcome};
use waybill_mesh::Membership;
use waybill_mesh_protocol::frames::{EpochBoxes, FrameId, HistoryRequest, Refused, Send, SendResult};
use waybill_mesh_protocol::{FRAME_BYTES_MAX, Framed, ServerFrame, TopicName};
use waybill_store::shares::Share;

use super::state::Step;
use crate::broker::{self, Looking};
use crate::door::Door;

/// What has been done.
pub(super) enum Done {
    Answer(Box<Framed<ServerFrame>>, Option<Share>),
    Acknowledged(Outcome<()>),
    Uploaded { topic: TopicName, epoch: u32, outcome: Outcome<bool> },
}

/// A frame that waits for room.
pub(super) type Held = BoxFuture<'static, (Outcome<Share>, Option<FrameId>, Step)>;

pub(super) async fn held(held: &mut Option<Held>) -> (Outcome<Share>, Option<FrameId>, Step) {
    match held {
        Some(held) => held.await,
        None => std::future::pending().await,
    }
}

pub(super) fn refusal(id: Option<FrameId>, step: &Step, error: &Error) -> Box<Framed<ServerFrame>> {
    let frame = match step {
        Step::Send(send) => {
            ServerFrame::SendResult(Box::new(SendResult::refused(send.client_message_id.clone(), error)))
        }
        _ => ServerFrame::Error(Refused::from(error)),
    };
    Box::new(Framed::answer(id, frame))
}

pub(super) async fn send(
    door: Arc<Door>,
    member: Membership,
    id: Option<FrameId>,
    send: Box<Send>,
    looking: Option<Looking>,
    _room: Option<Share>,
) -> Done {
    let result = broker::accept(&door, &member, *send, looking).await;
    Done::Answer(Box::new(Framed::answer(id, ServerFrame::SendResult(Box::new(result)))), None)
}

pub(super) async fn history(
    door: Arc<Door>,
    member: Membership,
    charged: Caller,
    id: Option<FrameId>,
    request: HistoryRequest,
) -> Done {
    let read = async {
        let room = door.room_for_deliveries(&charged, FRAME_BYTES_MAX).await?;
        let page = broker::history(&door, &member, request).await?;
        Ok((page, room))
    };
    match read.await {
        Ok((page, room)) => Done::Answer(Box::new(Framed::answer(id, ServerFrame::HistoryPage(page))), Some(room)),
        Err(error) => Done::Answer(refusal(id, &Step::History(request), &error), None),
    }
}

pub(super) async fn boxes(door: Arc<Door>, member: Membership, boxes: EpochBoxes, _room: Option<Share>) -> Done {
    let (topic, epoch) = (boxes.topic.clone(), boxes.epoch);
    let outcome = broker::upload_epoch(&door, &member, boxes).await;
    Done::Uploaded { topic, epoch, outcome }
}
