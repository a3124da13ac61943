//! In whose name a caller acts. The fields of a request that say so are optional: the credential says who calls.

use waybill_kernel::principal::forbidden;
use waybill_kernel::{Caller, Error, Principal, PrincipalKind, Result, Role};
use waybill_store::Ctx;

/// The principal a request names, of the `usual` kind unless it says which; the caller itself when it names none. Not yet
/// whether the caller may.
pub(crate) fn named(
    caller: &Caller,
    kind: Option<PrincipalKind>,
    id: Option<&str>,
    usual: PrincipalKind,
) -> Result<Principal> {
    let caller = &caller.principal;
    match (kind, id) {
        (None, None) => Ok(caller.clone()),
        (Some(_), None) => Err(Error::invalid("A principal's kind needs its id beside it.")),
        (kind, Some(id)) if id == caller.id && kind.is_none_or(|kind| kind == caller.kind) => Ok(caller.clone()),
        (kind, Some(id)) => Principal::new(kind.unwrap_or(usual), id),
    }
}

/// The caller, or whom it names, in the form that is stored. Only admin and system may name somebody else.
pub(crate) fn actor(
    ctx: &Ctx<'_>,
    kind: Option<PrincipalKind>,
    id: Option<&str>,
    usual: PrincipalKind,
) -> Result<String> {
    let (caller, named) = (&ctx.caller.principal, named(ctx.caller, kind, id, usual)?);
    if named == *caller || ctx.caller.sees_all_owners() {
        return Ok(named.to_string());
    }
    let message = format!("The key belongs to {caller}; it cannot act as {named}, nor see what is theirs.");
    Err(forbidden(message, &[Role::Admin, Role::System], &ctx.caller.roles))
}
