//! Whom to believe: what the broker says of members is checked against what this member knows.
//!
//! The broker passes keys on and is not trusted with them. The owner's key comes with the invite; every box key is signed by its
//! member's own key; and a member whose key is known has another one only when the known key has signed it.

use waybill_mesh_protocol::PublicKey;

use super::Member;

/// Why something the broker said is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The box key is not signed by the member's key.
    BoxKeyUnsigned,
    /// Somebody else than the pinned owner is called the owner.
    NotTheOwner,
    /// A known member has another key, and the known one has not signed it.
    KeyReplaced,
    /// The key belongs to another member.
    KeyTaken,
}

impl Doubt {
    pub const fn name(self) -> &'static str {
        match self {
            Self::BoxKeyUnsigned => "box_key_unsigned",
            Self::NotTheOwner => "not_the_owner",
            Self::KeyReplaced => "key_replaced",
            Self::KeyTaken => "key_taken",
        }
    }
}

/// What is known when something is said about a member.
pub struct Known<'a> {
    /// The member by this id.
    pub member: Option<&'a Member>,
    /// The member that has the key which is offered now, or had it.
    pub holder: Option<&'a Member>,
    pub owner: &'a PublicKey,
}

/// `proven`: the key the member had has signed the one it has now; of an owner who is not known yet, the pinned key has.
pub fn believe(known: &Known<'_>, offered: &Member, proven: bool) -> Result<(), Doubt> {
    if offered.keys.verify().is_err() {
        return Err(Doubt::BoxKeyUnsigned);
    }
    if known.holder.is_some_and(|holder| holder.id != offered.id) {
        return Err(Doubt::KeyTaken);
    }
    let has_other_key = known.member.is_some_and(|member| member.keys.ed25519 != offered.keys.ed25519);
    if has_other_key && !proven {
        return Err(Doubt::KeyReplaced);
    }
    // The owner may have rotated: then the key that it had has signed this one, the pinned one if it was not known. Whoever is known
    // as the owner was believed once, and stays it.
    let is_owner = known.member.map_or(proven, |member| member.is_owner || member.keys.ed25519 == *known.owner);
    if offered.is_owner && offered.keys.ed25519 != *known.owner && !is_owner {
        return Err(Doubt::NotTheOwner);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use waybill_kernel::entropy::SeededEntropy;
    use waybill_kernel::id::Uuid;
    use waybill_mesh_protocol::{Identity, MemberId, MemberKeys};

    use super::*;
    use crate::directory::Standing;

    fn keys(seed: u64) -> MemberKeys {
        Identity::generate(&SeededEntropy::new(seed)).public()
    }

    fn member(id: u128, seed: u64, is_owner: bool) -> Member {
        let id = MemberId(Uuid::from_u128(id));
        Member { id, name: "x".to_owned(), keys: keys(seed), is_owner, state: Standing::Active }
    }

    #[test]
    fn who_is_believed() {
        let owner = member(1, 1, true);
        let (bob, rotated) = (member(2, 2, false), member(2, 3, false));
        let unsigned = Member { keys: MemberKeys { x25519: keys(9).x25519, ..keys(2) }, ..bob.clone() };
        let usurper = member(2, 2, true);
        let owner_rotated = member(1, 4, true);
        let owner_renamed = Member { name: "y".to_owned(), ..owner_rotated.clone() };
        let thief = member(3, 2, false);
        for (known, holder, offered, proven, expected) in [
            (None, None, &bob, false, Ok(())),
            (Some(&bob), Some(&bob), &bob, false, Ok(())),
            (None, None, &unsigned, false, Err(Doubt::BoxKeyUnsigned)),
            (Some(&bob), None, &rotated, false, Err(Doubt::KeyReplaced)),
            (Some(&bob), None, &rotated, true, Ok(())),
            (None, Some(&bob), &thief, false, Err(Doubt::KeyTaken)),
            (None, None, &owner, false, Ok(())),
            (None, None, &usurper, false, Err(Doubt::NotTheOwner)),
            (Some(&bob), Some(&bob), &usurper, false, Err(Doubt::NotTheOwner)),
            (Some(&bob), None, &member(2, 3, true), true, Err(Doubt::NotTheOwner)),
            (Some(&owner), None, &owner_rotated, true, Ok(())),
            (None, None, &owner_rotated, true, Ok(())),
            (None, None, &owner_rotated, false, Err(Doubt::NotTheOwner)),
            (Some(&owner), None, &owner_rotated, false, Err(Doubt::KeyReplaced)),
            (Some(&owner_rotated), None, &member(1, 5, true), true, Ok(())),
            (Some(&owner_rotated), None, &member(1, 5, true), false, Err(Doubt::KeyReplaced)),
            (Some(&owner_rotated), Some(&owner_rotated), &owner_renamed, false, Ok(())),
        ] {
            let known = Known { member: known, holder, owner: &owner.keys.ed25519 };
            assert_eq!(believe(&known, offered, proven), expected, "{offered:?}");
        }
    }
}
