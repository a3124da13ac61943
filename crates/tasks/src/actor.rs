//! In whose name a caller acts.

use waybill_kernel::principal::forbidden;
use waybill_kernel::{Principal, PrincipalKind, Result, Role};
use waybill_store::Ctx;

/// The caller, in the form tasks and leases store. The fields are optional: the credential says who calls, and only admins
/// may speak for somebody else, of the `usual` kind unless they name another.
pub(crate) fn actor(
    ctx: &Ctx<'_>,
    kind: Option<PrincipalKind>,
    id: Option<&str>,
    usual: PrincipalKind,
) -> Result<String> {
    let caller = &ctx.caller.principal;
    let Some(id) = id else { return Ok(caller.to_string()) };
    let named = Principal::new(kind.unwrap_or(usual), id)?;
    if named.id == caller.id && (kind.is_none() || named.kind == caller.kind) {
        return Ok(caller.to_string());
    }
    if ctx.caller.sees_all_owners() {
        return Ok(named.to_string());
    }
    let message = format!("The key belongs to {caller}; it cannot act as {named}.");
    Err(forbidden(message, &[Role::Admin], &ctx.caller.roles))
}
