//! The metrics of the mesh's door, each with its meaning.

use metrics::{Gauge, counter, describe_counter, describe_gauge, gauge};

const SOCKETS: &str = "waybill_broker_sockets_open";
const CLOSED: &str = "waybill_broker_sockets_closed_total";
const PUSHED: &str = "waybill_broker_pushed_total";
const FRAMES_REFUSED: &str = "waybill_broker_frames_refused_total";
const LIMITER_ALONE: &str = "waybill_broker_rate_limit_in_process_total";

pub(crate) fn describe() {
    describe_gauge!(SOCKETS, "Open sockets of members");
    describe_counter!(CLOSED, "Sockets that the broker has closed, by the name of the close code");
    describe_counter!(PUSHED, "Deliveries that were pushed, by whether it was the first time on the socket");
    describe_counter!(FRAMES_REFUSED, "Frames that could not be read, were not expected or not carried out, by why");
    describe_counter!(LIMITER_ALONE, "Messages that this server has counted alone because Redis did not answer");
}

/// Counted down when dropped.
pub(crate) struct Open(Gauge);

pub(crate) fn opened() -> Open {
    let open = gauge!(SOCKETS);
    open.increment(1.0);
    Open(open)
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

pub(crate) fn closed(why: &'static str) {
    counter!(CLOSED, "why" => why).increment(1);
}

pub(crate) fn pushed(is_first: bool) {
    counter!(PUSHED, "again" => if is_first { "no" } else { "yes" }).increment(1);
}

/// `unreadable`, `unexpected`, or the code of the error.
pub(crate) fn frame_refused(why: &'static str) {
    counter!(FRAMES_REFUSED, "why" => why).increment(1);
}

pub(crate) fn counted_alone() {
    counter!(LIMITER_ALONE).increment(1);
}
