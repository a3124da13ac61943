//! Who is working on which files.

use waybill_kernel::{OperationSpec, Role, Scope};
use waybill_store::Registry;

pub mod check_file_reservation_conflicts;
pub(crate) mod chosen;
pub mod file_reservation_paths;
pub mod force_release_file_reservation;
pub mod list_file_reservations;
pub mod release_file_reservations;
pub mod renew_file_reservations;

pub(crate) fn register(registry: Registry) -> Registry {
    registry
        .with::<file_reservation_paths::FileReservationPaths>()
        .with::<check_file_reservation_conflicts::CheckFileReservationConflicts>()
        .with::<renew_file_reservations::RenewFileReservations>()
        .with::<release_file_reservations::ReleaseFileReservations>()
        .with::<force_release_file_reservation::LookingFirst>()
        .with::<list_file_reservations::ListFileReservations>()
}

/// What reads of mail have in common.
pub(crate) const READ: OperationSpec = OperationSpec {
    domain: crate::NAME,
    roles: &[Role::Agent, Role::Admin, Role::System],
    scopes: &[Scope::MailRead],
    ..OperationSpec::READ
};

/// What writes of mail have in common.
pub(crate) const WRITE: OperationSpec = OperationSpec {
    domain: crate::NAME,
    roles: &[Role::Agent, Role::Admin, Role::System],
    scopes: &[Scope::MailWrite],
    ..OperationSpec::WRITE
};
