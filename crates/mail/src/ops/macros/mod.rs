//! Several steps in one call and one transaction: all of them or none.

use waybill_kernel::{Error, Result};
use waybill_store::Registry;

pub mod macro_contact_handshake;
pub mod macro_file_reservation_cycle;
pub mod macro_prepare_thread;
pub mod macro_start_session;

pub(crate) fn register(registry: Registry) -> Registry {
    registry
        .with::<macro_start_session::MacroStartSession>()
        .with::<macro_prepare_thread::MacroPrepareThread>()
        .with::<macro_file_reservation_cycle::MacroFileReservationCycle>()
        .with::<macro_contact_handshake::MacroContactHandshake>()
}

/// A time that ends before it begins is a mistake; one that is too short or too long is cut to size.
fn check_ttl(seconds: Option<i64>) -> Result<()> {
    match seconds {
        Some(..0) => Err(Error::invalid("A reservation's time must not be negative.")),
        _ => Ok(()),
    }
}
