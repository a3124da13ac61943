//! Who calls. Two tenants whose people bear the same names, and the operator, whose tenant has no tasks at all.

use proptest::prelude::*;

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
    /// An agent of the other tenant by Alice's name.
    Twin,
    /// Admin of the other tenant, by the name of ours.
    Chief,
    /// Admin of the default tenant. Never creates: its lists stay empty, whatever the tenants hold.
    Operator,
}

impl Who {
    pub const ALL: [Who; 6] = [Who::Alice, Who::Bob, Who::Boss, Who::Twin, Who::Chief, Who::Operator];

    pub fn tenant(self) -> Tenant {
        match self {
            Who::Alice | Who::Bob | Who::Boss => Tenant::Ours,
            Who::Twin | Who::Chief => Tenant::Theirs,
            Who::Operator => Tenant::Default,
        }
    }

    pub fn kind(self) -> &'static str {
        if self.sees_all_owners() { "human" } else { "agent" }
    }

    pub fn id(self) -> &'static str {
        match self {
            Who::Alice | Who::Twin => "alice",
            Who::Bob => "bob",
            Who::Boss | Who::Chief | Who::Operator => "admin",
        }
    }

    pub fn principal(self) -> String {
        format!("{}:{}", self.kind(), self.id())
    }

    pub fn sees_all_owners(self) -> bool {
        matches!(self, Who::Boss | Who::Chief | Who::Operator)
    }

    /// Within the same tenant.
    pub fn may_act_on(self, owner: Who) -> bool {
        self.sees_all_owners() || self == owner
    }
}

pub fn anybody() -> impl Strategy<Value = Who> {
    proptest::sample::select(Who::ALL.to_vec())
}

/// Those who have tasks.
pub fn somebody() -> impl Strategy<Value = Who> {
    proptest::sample::select(Who::ALL[..5].to_vec())
}
