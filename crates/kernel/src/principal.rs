//! Who is calling, and what the credential allows.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::id::Uuid;
use crate::visible::unseen;
use crate::{Code, Error, KeyId, Mode, Result, Tenant};

const PRINCIPAL_ID_CHARS_MAX: usize = 128;

/// A closed set with one lower-case word for each member.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $word:literal $(| $alias:literal)?),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
        #[schemars(inline)]
        pub enum $name { $(#[serde(rename = $word $(, alias = $alias)?)] $variant),+ }

        impl $name {
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                $name::ALL.iter().copied().find(|member| member.as_str() == text).ok_or_else(|| {
                    let known: Vec<_> = $name::ALL.iter().map(|member| member.as_str()).collect();
                    Error::invalid(format!("{text:?} is none of {}.", known.join(", ")))
                })
            }
        }
    };
}

words! {
    PrincipalKind {
        Agent = "agent", Worker = "worker", Service = "service", System = "system" | "asyncgate", Human = "human",
    }
}

words! {
    /// Roles belong to the credential, not to the principal. `delegate` opens no operation by itself: beside another role
    /// it lets a scheduler's key make tasks that belong to the owner of the schedule.
    Role { Agent = "agent", Worker = "worker", Admin = "admin", System = "system", Delegate = "delegate" }
}

words! {
    /// `mesh:member` is what the mesh's door gives to members; with a key it opens nothing.
    Scope {
        TasksRead = "tasks:read", TasksWrite = "tasks:write", TasksLease = "tasks:lease",
        ReceiptsRead = "receipts:read", ReceiptsAck = "receipts:ack",
        QueuesSend = "queues:send", QueuesReceive = "queues:receive", QueuesManage = "queues:manage",
        MailRead = "mail:read", MailWrite = "mail:write",
        MeshManage = "mesh:manage", MeshMember = "mesh:member",
        AdminRead = "admin:read", AdminWrite = "admin:write",
    }
}

impl Scope {
    /// Scopes that came when there were keys already. A key from before has none of them, an admin's neither.
    pub const LATER: &'static [Scope] = &[
        Scope::QueuesSend,
        Scope::QueuesReceive,
        Scope::QueuesManage,
        Scope::MailRead,
        Scope::MailWrite,
        Scope::MeshManage,
        Scope::MeshMember,
    ];
}

impl Role {
    /// The role a credential gets when none is named. Admin is only ever granted by name.
    pub const fn default_for(kind: PrincipalKind) -> Role {
        match kind {
            PrincipalKind::Worker => Role::Worker,
            PrincipalKind::System => Role::System,
            PrincipalKind::Agent | PrincipalKind::Service | PrincipalKind::Human => Role::Agent,
        }
    }

    /// What a new key gets when no scope is named.
    pub const fn default_scopes(self) -> &'static [Scope] {
        use Scope::{ReceiptsAck, ReceiptsRead, TasksLease, TasksRead, TasksWrite};
        match self {
            Role::Agent => &[TasksRead, TasksWrite, ReceiptsRead, ReceiptsAck],
            Role::Worker => &[TasksLease, ReceiptsRead],
            Role::Admin => Scope::ALL,
            Role::Delegate => &[],
            Role::System => &[TasksRead, TasksWrite, ReceiptsRead, ReceiptsAck, Scope::AdminRead],
        }
    }
}

/// A small set over one of the closed vocabularies above, kept as text in the database: `agent,worker`.
macro_rules! word_set {
    ($name:ident of $member:ident) => {
        #[derive(Clone, Debug, PartialEq, Eq, Default)]
        pub struct $name(Arc<[$member]>);

        impl $name {
            pub fn new(members: impl IntoIterator<Item = $member>) -> Self {
                let mut members: Vec<_> = members.into_iter().collect();
                members.sort();
                members.dedup();
                Self(members.into())
            }

            pub fn contains(&self, member: $member) -> bool {
                self.0.contains(&member)
            }

            pub fn contains_any(&self, of: &[$member]) -> bool {
                of.iter().any(|member| self.contains(*member))
            }

            pub fn iter(&self) -> impl Iterator<Item = $member> + '_ {
                self.0.iter().copied()
            }

            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let words: Vec<_> = self.0.iter().map(|member| member.as_str()).collect();
                f.write_str(&words.join(","))
            }
        }

        impl FromStr for $name {
            type Err = Error;

            /// Commas or spaces between the words.
            fn from_str(text: &str) -> Result<Self> {
                let words = text.split([',', ' ']).filter(|word| !word.is_empty());
                Ok(Self::new(words.map($member::from_str).collect::<Result<Vec<_>>>()?))
            }
        }
    };
}

word_set!(Roles of Role);
word_set!(Scopes of Scope);

/// `kind:id`, as in `agent:alice`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Principal {
    pub kind: PrincipalKind,
    pub id: String,
}

impl Principal {
    pub fn new(kind: PrincipalKind, id: &str) -> Result<Self> {
        let length = id.chars().count();
        if !(1..=PRINCIPAL_ID_CHARS_MAX).contains(&length) {
            let message =
                format!("A principal's id has 1 to {PRINCIPAL_ID_CHARS_MAX} characters; this one has {length}.");
            return Err(Error::invalid(message));
        }
        // Not repeated: it would look like another, or like nothing.
        if let Some(rule) = unseen(id) {
            return Err(Error::invalid(format!("A principal's id {rule}.")));
        }
        Ok(Self { kind, id: id.to_owned() })
    }

    /// One that a table holds. It was a principal when it was stored, by rules that may have been others.
    pub fn from_stored(text: &str) -> Result<Self> {
        let (kind, id) = Self::parts(text)?;
        Ok(Self { kind, id: id.to_owned() })
    }

    fn parts(text: &str) -> Result<(PrincipalKind, &str)> {
        let (kind, id) = text
            .split_once(':')
            // Not repeated: people paste a key where a principal belongs.
            .ok_or_else(|| Error::invalid("A principal is written kind:id, as in agent:alice."))?;
        // The seed of this protocol names the server itself by either kind.
        let kind = if kind == "asyncgate" { PrincipalKind::System } else { kind.parse()? };
        Ok((kind, id))
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.id)
    }
}

impl FromStr for Principal {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (kind, id) = Self::parts(text)?;
        Self::new(kind, id)
    }
}

impl Serialize for Principal {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Principal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|error: Error| de::Error::custom(error.message()))
    }
}

impl JsonSchema for Principal {
    fn schema_name() -> Cow<'static, str> {
        "Principal".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^(agent|worker|service|system|human|asyncgate):.+$" })
    }
}

/// An authenticated caller. The tenant comes from the credential and from nowhere else.
#[derive(Clone, Debug)]
pub struct Caller {
    pub tenant: Tenant,
    pub tenant_id: Uuid,
    pub principal: Principal,
    pub roles: Roles,
    pub scopes: Scopes,
    /// The key the caller came with. None for the program itself, and where no key is asked for.
    pub key: Option<KeyId>,
}

impl Caller {
    pub fn has(&self, role: Role) -> bool {
        self.roles.contains(role)
    }

    /// One of these scopes, or an admin's that stands for any: `admin:write`, and `admin:read` where nothing is written.
    /// For calls alone: what a key may give to another is what it has by name.
    pub fn may_use(&self, any_of: &[Scope], mode: Mode) -> bool {
        let admins: &[Scope] = match mode {
            Mode::Read => &[Scope::AdminRead, Scope::AdminWrite],
            Mode::Write => &[Scope::AdminWrite],
        };
        self.scopes.contains_any(any_of) || self.scopes.contains_any(admins)
    }

    /// Admin and system act on anybody's rows of their own tenant.
    pub fn sees_all_owners(&self) -> bool {
        self.has(Role::Admin) || self.has(Role::System)
    }

    /// For what concerns the whole server.
    pub fn require_operator(&self, what: &str) -> Result<()> {
        if self.tenant == Tenant::DEFAULT && self.has(Role::Admin) {
            return Ok(());
        }
        Err(forbidden(format!("Only an admin of the default tenant may {what}."), &[Role::Admin], &self.roles))
    }

    pub fn require_owner(&self, owner: &str, what: &str) -> Result<()> {
        if self.sees_all_owners() || self.principal.to_string() == owner {
            return Ok(());
        }
        Err(forbidden(format!("This {what} belongs to another principal."), &[Role::Admin], &self.roles))
    }
}

pub fn forbidden(message: impl Into<String>, required: &[Role], yours: &Roles) -> Error {
    let required: Vec<_> = required.iter().map(|role| role.as_str()).collect();
    Error::new(Code::Forbidden, message).with("required_role", required.join("|")).with("your_role", yours.to_string())
}

/// As [`forbidden`], for a scope that the key lacks.
pub fn out_of_scope(message: impl Into<String>, required: &[Scope], yours: &Scopes) -> Error {
    let required: Vec<_> = required.iter().map(|scope| scope.as_str()).collect();
    Error::new(Code::Forbidden, message)
        .with("required_scope", required.join("|"))
        .with("your_scopes", yours.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn principals_read_back_and_refuse_what_is_not_one() {
        for text in ["agent:alice", "worker:w:1", "human:Ünsal Ä"] {
            assert_eq!(text.parse::<Principal>().unwrap().to_string(), text);
        }
        assert_eq!(serde_json::from_str::<PrincipalKind>(r#""asyncgate""#).unwrap(), PrincipalKind::System);
        assert_eq!("asyncgate:asyncgate".parse::<Principal>().unwrap().to_string(), "system:asyncgate");
        for text in ["alice", "agent:", "robot:x", "agent:a\u{0}b", &format!("agent:{}", "x".repeat(129))] {
            assert!(text.parse::<Principal>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_principal_that_looks_like_another_is_none_unless_it_was_one_before() {
        for text in ["agent:alice\u{200B}", "agent:\u{202E}ecila", "agent: alice", "agent:alice ", "agent:a\u{A0}b"] {
            let error = text.parse::<Principal>().unwrap_err();
            assert_eq!(error.code(), Code::InvalidRequest, "{text:?}");
            assert!(serde_json::from_value::<Principal>(serde_json::json!(text)).is_err(), "{text:?}");
            assert_eq!(Principal::from_stored(text).unwrap().to_string(), text);
        }
        assert!(Principal::from_stored("alice").is_err());
    }

    #[test]
    fn sets_take_commas_and_spaces_and_have_one_text_form() {
        let scopes: Scopes = "tasks:write tasks:read,tasks:read".parse().unwrap();
        assert_eq!(scopes.to_string(), "tasks:read,tasks:write");
        assert!("tasks:fly".parse::<Scopes>().is_err());
    }
}
