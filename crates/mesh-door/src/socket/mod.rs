//! The sockets of members: challenge, negotiation, then frames in both directions until one side ends it.

mod boundaries;
mod carrying;
pub(crate) mod greeting;
mod minting;
mod pushing;
mod session;
mod state;
mod telling;
pub(crate) mod wire;

use std::sync::Arc;

use waybill_doors::Taken;
use waybill_mesh_protocol::CloseCode;

use crate::door::Door;
use crate::metrics;
use crate::unfinished::Place;
use wire::{Leave, Socket};

/// One socket, from its challenge to its end. `place` is among those who have not answered theirs.
pub(crate) async fn serve(door: Arc<Door>, taken: Taken, place: Place) {
    let Taken { socket, stopping, presence } = taken;
    let mut socket = Socket::new(socket, door.settings.write()).await;
    let greeted = tokio::select! {
        // In a box: most sockets are past it for all of their life.
        greeted = Box::pin(greeting::greet(&door, &mut socket, place)) => greeted,
        () = stopping.cancelled() => Err(Leave::Close(CloseCode::GoingAway)),
    };
    let leave = match greeted {
        Ok(member) => {
            let _occupied = presence.occupy();
            session::run(&door, &mut socket, member, stopping).await
        }
        Err(leave) => leave,
    };
    if let Leave::Close(code) = leave {
        metrics::closed(code.name());
        Box::pin(socket.close(code)).await;
    }
}
