//! Who may write to whom.

use waybill_kernel::{Error, Result};

/// What an agent says about who may write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Open,
    /// Whoever has something to do with it already, and whoever it approved.
    Auto,
    ContactsOnly,
    BlockAll,
}

impl Policy {
    pub const ALL: &'static [Policy] = &[Policy::Open, Policy::Auto, Policy::ContactsOnly, Policy::BlockAll];

    pub const fn as_str(self) -> &'static str {
        match self {
            Policy::Open => "open",
            Policy::Auto => "auto",
            Policy::ContactsOnly => "contacts_only",
            Policy::BlockAll => "block_all",
        }
    }

    /// One that somebody wants to have.
    pub fn new(name: &str) -> Result<Self> {
        let name = name.trim().to_ascii_lowercase();
        Self::ALL.iter().copied().find(|policy| policy.as_str() == name).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|policy| policy.as_str()).collect();
            Error::invalid(format!("policy must be one of {}; the old one stays.", known.join(", ")))
        })
    }

    /// One that a table holds: unknown ones behave as `auto`.
    pub fn stored(name: &str) -> Self {
        Self::ALL.iter().copied().find(|policy| policy.as_str() == name).unwrap_or(Policy::Auto)
    }
}

/// What is known of a sender and a recipient.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts {
    pub is_self: bool,
    /// They have written to each other lately, share the thread, or hold reservations that overlap.
    pub acquainted: bool,
    /// A contact between them was approved and has not expired.
    pub approved: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Allowed,
    /// The recipient takes no mail: no request would help.
    Blocked,
    /// After a request that the recipient approves.
    Required,
}

/// The order is the contract's: `block_all` comes before everything but the agent's own mail.
pub fn judge(policy: Policy, facts: Facts) -> Verdict {
    match policy {
        _ if facts.is_self => Verdict::Allowed,
        Policy::BlockAll => Verdict::Blocked,
        Policy::Open => Verdict::Allowed,
        Policy::Auto if facts.acquainted => Verdict::Allowed,
        Policy::Auto | Policy::ContactsOnly if facts.approved => Verdict::Allowed,
        Policy::Auto | Policy::ContactsOnly => Verdict::Required,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_decision() {
        let facts = |is_self, acquainted, approved| Facts { is_self, acquainted, approved };
        let (none, all) = (facts(false, false, false), facts(true, true, true));
        for policy in Policy::ALL {
            assert_eq!(judge(*policy, all), Verdict::Allowed, "one's own mail");
        }
        for (policy, known, approved, expected) in [
            (Policy::Open, false, false, Verdict::Allowed),
            (Policy::BlockAll, true, true, Verdict::Blocked),
            (Policy::Auto, true, false, Verdict::Allowed),
            (Policy::Auto, false, true, Verdict::Allowed),
            (Policy::ContactsOnly, true, false, Verdict::Required),
            (Policy::ContactsOnly, false, true, Verdict::Allowed),
        ] {
            assert_eq!(judge(policy, facts(false, known, approved)), expected, "{policy:?}");
        }
        assert_eq!(judge(Policy::Auto, none), Verdict::Required);
    }

    #[test]
    fn an_unknown_policy_is_refused_and_a_stored_one_is_auto() {
        assert_eq!(Policy::new(" OPEN ").unwrap(), Policy::Open);
        assert!(Policy::new("friends").is_err());
        assert_eq!(Policy::stored("friends"), Policy::Auto);
    }
}
