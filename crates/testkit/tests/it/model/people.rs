//! Who calls. Two tenants whose people bear the same names, and the operator, whose tenant has no tasks at all.

use proptest::prelude::*;
use proptest::sample::select;
use waybill_kernel::Role;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tenant {
    Ours,
    Theirs,
    Default,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Alice,
    Bob,
    /// Admin of Alice's and Bob's tenant.
    Boss,
    /// Workers of that tenant.
    Walt,
    Wanda,
    /// An agent of the other tenant by Alice's name.
    Twin,
    /// Admin of the other tenant, by the name of ours.
    Chief,
    /// A worker of the other tenant by Walt's name.
    Ward,
    /// Admin of the default tenant. Never creates: its lists stay empty, whatever the tenants hold.
    Operator,
}

pub const ALL: [Who; 9] =
    [Who::Alice, Who::Bob, Who::Boss, Who::Walt, Who::Wanda, Who::Twin, Who::Chief, Who::Ward, Who::Operator];
/// Those who have tasks, the busier ones more often.
pub const OWNERS: [Who; 8] = [Who::Alice, Who::Alice, Who::Alice, Who::Bob, Who::Bob, Who::Boss, Who::Twin, Who::Chief];
/// Those who may ask for tasks to be shown or stopped.
pub const ASKERS: [Who; 6] = [Who::Alice, Who::Bob, Who::Boss, Who::Twin, Who::Chief, Who::Operator];
/// Those who may work. Admins seldom do.
pub const WORKERS: [Who; 9] =
    [Who::Walt, Who::Walt, Who::Wanda, Who::Wanda, Who::Ward, Who::Ward, Who::Boss, Who::Chief, Who::Operator];

/// The server's own identity.
pub const SYSTEM: &str = "system:asyncgate";

impl Who {
    pub fn tenant(self) -> Tenant {
        match self {
            Who::Alice | Who::Bob | Who::Boss | Who::Walt | Who::Wanda => Tenant::Ours,
            Who::Twin | Who::Chief | Who::Ward => Tenant::Theirs,
            Who::Operator => Tenant::Default,
        }
    }

    pub fn role(self) -> Role {
        match self {
            Who::Alice | Who::Bob | Who::Twin => Role::Agent,
            Who::Walt | Who::Wanda | Who::Ward => Role::Worker,
            Who::Boss | Who::Chief | Who::Operator => Role::Admin,
        }
    }

    pub fn kind(self) -> &'static str {
        match self.role() {
            Role::Worker => "worker",
            Role::Admin => "human",
            _ => "agent",
        }
    }

    pub fn id(self) -> &'static str {
        match self {
            Who::Alice | Who::Twin => "alice",
            Who::Bob => "bob",
            Who::Walt | Who::Ward => "walt",
            Who::Wanda => "wanda",
            Who::Boss | Who::Chief | Who::Operator => "admin",
        }
    }

    pub fn principal(self) -> String {
        format!("{}:{}", self.kind(), self.id())
    }

    pub fn is_admin(self) -> bool {
        self.role() == Role::Admin
    }

    /// Within the same tenant.
    pub fn may_act_on(self, owner: Who) -> bool {
        self.is_admin() || self == owner
    }

    /// Whoever bears that name in that tenant. Nobody is the server.
    pub fn find(tenant: Tenant, principal: &str) -> Option<Who> {
        ALL.into_iter().find(|who| who.tenant() == tenant && who.principal() == principal)
    }

    pub fn admin_of(tenant: Tenant) -> Who {
        match tenant {
            Tenant::Ours => Who::Boss,
            Tenant::Theirs => Who::Chief,
            Tenant::Default => Who::Operator,
        }
    }
}

pub fn one_of(some: &[Who]) -> impl Strategy<Value = Who> + use<> {
    select(some.to_vec())
}

/// Anybody's name, the server's among them.
pub fn any_principal() -> impl Strategy<Value = String> {
    let names: Vec<String> = ALL.into_iter().map(Who::principal).chain([SYSTEM.to_owned()]).collect();
    select(names)
}

/// Kind and id.
pub fn split(principal: &str) -> (&str, &str) {
    principal.split_once(':').unwrap()
}
