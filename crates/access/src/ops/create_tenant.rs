//! Create a tenant: an empty world of its own. Its first key is made by `create_key` with `tenant`.

use schemars::JsonSchema;
use serde::Deserialize;
use waybill_kernel::id::Uuid;
use waybill_kernel::visible::unseen;
use waybill_kernel::{Code, Error, Example, OperationSpec, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reach, Reply, Tx};

use crate::tenant::{self, TenantId, TenantView, Tier};

const NAME_CHARS_MAX: usize = 64;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateTenant {
    /// A name nobody else has: 1 to 64 characters, all of them seen, no space at either end.
    #[schemars(length(min = 1, max = NAME_CHARS_MAX))]
    pub name: String,
    /// What the tenant may use; `free` when left out.
    #[serde(default)]
    pub tier: Option<Tier>,
}

impl CreateTenant {
    fn check_name(&self) -> Result<()> {
        let name = &self.name;
        if !(1..=NAME_CHARS_MAX).contains(&name.chars().count()) {
            return Err(Error::invalid(format!("A tenant's `name` has 1 to {NAME_CHARS_MAX} characters.")));
        }
        if let Some(rule) = unseen(name) {
            return Err(Error::invalid(format!("A tenant's `name` {rule}.")));
        }
        if Uuid::try_parse(name).is_ok() {
            return Err(Error::invalid("A tenant's `name` must not look like an id."));
        }
        Ok(())
    }
}

impl Operation for CreateTenant {
    const SPEC: OperationSpec = OperationSpec {
        name: "create_tenant",
        domain: "admin",
        route: Route::post("/admin/tenants"),
        tool: false,
        roles: &[Role::Admin],
        scopes: &[Scope::AdminWrite],
        status: 201,
        title: "Create a tenant",
        description: "Makes a tenant, which shares nothing with others. For admins of the default tenant. \
                      Give it its first key by creating one with `tenant`.",
        example: Example {
            arguments: r#"{"name": "acme", "tier": "paid"}"#,
            answer: r#"{"tenant_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e10", "name": "acme", "tier": "paid",
                "created_at": "2026-01-05T12:30:00.000000Z"}"#,
        },
        ..OperationSpec::WRITE
    };
    const REACH: Reach = Reach::System;
    type Output = TenantView;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<TenantView>> {
        ctx.caller.require_operator("make tenants")?;
        self.check_name()?;
        let tenant = TenantView {
            tenant_id: TenantId(ctx.ids.next()),
            name: self.name.clone(),
            tier: self.tier.unwrap_or(Tier::Free),
            created_at: ctx.now,
        };
        if !tenant::add(tx, &tenant).await? {
            return Err(Error::new(Code::AlreadyExists, "A tenant has this name already."));
        }
        Ok(Reply::Done(tenant))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_printable_and_not_ids() {
        let check = |name: &str| CreateTenant { name: name.to_owned(), tier: None }.check_name();
        for name in ["acme", "Ünsal & Söhne", &"x".repeat(64)] {
            assert!(check(name).is_ok(), "{name}");
        }
        for name in [
            "",
            " acme",
            "acme\n",
            "a\u{0}b",
            "ac\u{200B}me",
            "acme\u{A0}",
            &"x".repeat(65),
            "0198c0de-0000-7000-8000-000000000000",
        ] {
            assert!(check(name).is_err(), "{name:?}");
        }
    }
}
