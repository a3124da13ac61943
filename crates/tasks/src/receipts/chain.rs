//! The chain that receipts are sealed into, per tenant: its hashes, and the check of a whole chain. No SQL, no clock.
//!
//! ```text
//! content = H(salt, body, task, lease, schedule, instance)      parties = H(salt, sender, addressee)
//! link    = H(link before, position, id, type, parents, time, content, parties)
//! ```
//!
//! Texts and names enter a link only as salted digests. When they are erased together with the salt, nobody can find them
//! again by trying, and the links still prove that no receipt was dropped, added or moved.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use waybill_kernel::{Time, hex};

use super::ReceiptId;

pub type Digest = [u8; 32];

/// What the first link of a tenant follows.
pub const ORIGIN: Digest = [0; 32];

/// A receipt as it was sealed, with what its link was made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct Sealed {
    /// Its place in the tenant's chain, from 1 on.
    pub position: i64,
    pub receipt_id: ReceiptId,
    pub receipt_type: String,
    pub created_at: Time,
    pub parents: Vec<ReceiptId>,
    /// Hexadecimal, as all digests here.
    pub content_hash: String,
    pub parties_hash: String,
    pub link: String,
    /// Absent, like what follows, when the receipt's text was erased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub salt: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parties: Option<Parties>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct Parties {
    pub from: String,
    pub to: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct Content {
    /// The exact text of the body.
    pub body: String,
    pub task_id: Option<String>,
    pub lease_id: Option<String>,
    pub schedule_id: Option<String>,
    pub instance: String,
}

impl Content {
    pub fn digest(&self, salt: &[u8]) -> Digest {
        let optional =
            |text: &Option<String>| text.as_ref().map_or_else(|| vec![0], |text| [&[1], text.as_bytes()].concat());
        let (task, lease, schedule) = (optional(&self.task_id), optional(&self.lease_id), optional(&self.schedule_id));
        hash(&[b"content", salt, self.body.as_bytes(), &task, &lease, &schedule, self.instance.as_bytes()])
    }
}

impl Parties {
    pub fn digest(&self, salt: &[u8]) -> Digest {
        hash(&[b"parties", salt, self.from.as_bytes(), self.to.as_bytes()])
    }
}

/// What a link is made of, besides the one before it.
pub struct Link<'a> {
    pub position: i64,
    pub receipt_id: ReceiptId,
    pub receipt_type: &'a str,
    /// 16 bytes each.
    pub parents: &'a [u8],
    pub created_at: Time,
    pub content: &'a Digest,
    pub parties: &'a Digest,
}

impl Link<'_> {
    pub fn after(&self, previous: &Digest) -> Digest {
        hash(&[
            b"link",
            previous,
            &self.position.to_be_bytes(),
            self.receipt_id.as_bytes(),
            self.receipt_type.as_bytes(),
            self.parents,
            &self.created_at.micros().to_be_bytes(),
            self.content,
            self.parties,
        ])
    }
}

/// Each part with its length, so that no two lists of parts look alike.
fn hash(parts: &[&[u8]]) -> Digest {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    digest.finalize().into()
}

/// What is wrong with one receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// Its body, or what it is about, is not what was sealed.
    AlteredContent,
    /// Its sender or addressee is not the one that was sealed.
    AlteredParties,
    /// The receipt is gone, though it was not erased.
    MissingReceipt,
    /// Receipts before it are gone.
    MissingPosition,
    /// It stands behind one that was sealed later, or twice.
    Reordered,
    /// Its link does not follow from the one before: its id, type, parents, time or the link itself was changed, or it was
    /// put in from elsewhere.
    ForeignLink,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub position: i64,
    pub receipt_id: ReceiptId,
    pub fault: Fault,
}

/// Checks a chain from its beginning, receipt by receipt.
#[derive(Debug)]
pub struct Verifier {
    position: i64,
    link: Digest,
    pub receipts: u64,
    /// Whose text was erased: their place is proved, their content cannot be.
    pub erased: u64,
}

impl Default for Verifier {
    fn default() -> Self {
        Self { position: 0, link: ORIGIN, receipts: 0, erased: 0 }
    }
}

impl Verifier {
    /// The link everything so far leads to.
    pub fn head(&self) -> String {
        hex::encode(&self.link)
    }

    pub fn position(&self) -> i64 {
        self.position
    }

    /// What is wrong with the next one. The check goes on from what it says of itself, so that one fault is told once.
    pub fn check(&mut self, sealed: &Sealed) -> Vec<Finding> {
        self.receipts += 1;
        let mut faults = sealed.check_salted(&mut self.erased);
        let follows = sealed.position == self.position + 1;
        if sealed.position <= self.position {
            faults.push(Fault::Reordered);
        } else if !follows {
            faults.push(Fault::MissingPosition);
        }
        let stored = hex::decode(&sealed.link).and_then(|link| Digest::try_from(link).ok());
        // What follows a gap has nothing before it to follow from.
        if stored.is_none() || (follows && stored != sealed.link_after(&self.link)) {
            faults.push(Fault::ForeignLink);
        }
        if sealed.position > self.position {
            (self.position, self.link) = (sealed.position, stored.unwrap_or(ORIGIN));
        }
        let finding = |fault| Finding { position: sealed.position, receipt_id: sealed.receipt_id, fault };
        faults.into_iter().map(finding).collect()
    }
}

impl Sealed {
    /// None when its digests are none.
    fn link_after(&self, previous: &Digest) -> Option<Digest> {
        let digest = |text: &str| hex::decode(text).and_then(|bytes| Digest::try_from(bytes).ok());
        let parents: Vec<u8> = self.parents.iter().flat_map(|parent| parent.as_bytes().iter().copied()).collect();
        let link = Link {
            position: self.position,
            receipt_id: self.receipt_id,
            receipt_type: &self.receipt_type,
            parents: &parents,
            created_at: self.created_at,
            content: &digest(&self.content_hash)?,
            parties: &digest(&self.parties_hash)?,
        };
        Some(link.after(previous))
    }

    fn check_salted(&self, erased: &mut u64) -> Vec<Fault> {
        let Some(salt) = &self.salt else {
            *erased += 1;
            return Vec::new();
        };
        let (Some(content), Some(parties)) = (&self.content, &self.parties) else { return vec![Fault::MissingReceipt] };
        let salt = hex::decode(salt).unwrap_or_default();
        let mut faults = Vec::new();
        if hex::encode(&content.digest(&salt)) != self.content_hash {
            faults.push(Fault::AlteredContent);
        }
        if hex::encode(&parties.digest(&salt)) != self.parties_hash {
            faults.push(Fault::AlteredParties);
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use waybill_kernel::id::Uuid;

    use super::*;

    fn chain(length: u8) -> Vec<Sealed> {
        let mut previous = ORIGIN;
        (1..=length)
            .map(|nth| {
                let salt = [nth; 32];
                let content = Content { body: format!("{{\"n\":{nth}}}"), ..Content::default() };
                let parties = Parties { from: "agent:a".to_owned(), to: "agent:b".to_owned() };
                let mut sealed = Sealed {
                    position: i64::from(nth),
                    receipt_id: ReceiptId(Uuid::from_u128(u128::from(nth))),
                    receipt_type: "task.assigned".to_owned(),
                    created_at: Time::from_micros(i64::from(nth)),
                    parents: vec![ReceiptId(Uuid::nil())],
                    content_hash: hex::encode(&content.digest(&salt)),
                    parties_hash: hex::encode(&parties.digest(&salt)),
                    link: String::new(),
                    salt: Some(hex::encode(&salt)),
                    parties: Some(parties),
                    content: Some(content),
                };
                previous = sealed.link_after(&previous).unwrap();
                sealed.link = hex::encode(&previous);
                sealed
            })
            .collect()
    }

    fn faults(chain: &[Sealed]) -> Vec<(i64, Fault)> {
        let mut verifier = Verifier::default();
        let found = chain.iter().flat_map(|sealed| verifier.check(sealed));
        found.map(|finding| (finding.position, finding.fault)).collect()
    }

    #[test]
    fn a_chain_as_it_was_sealed_is_whole_and_what_is_erased_stays_in_it() {
        let mut chain = chain(5);
        assert_eq!(faults(&chain), []);
        (chain[2].salt, chain[2].content, chain[2].parties) = (None, None, None);
        assert_eq!(faults(&chain), []);
    }

    #[test]
    fn every_change_is_told_where_it_is() {
        type Change = fn(&mut Vec<Sealed>);
        let changes: [(Change, &[(i64, Fault)]); 11] = [
            (|chain| chain[1].content.as_mut().unwrap().body.push(' '), &[(2, Fault::AlteredContent)]),
            (|chain| chain[1].content.as_mut().unwrap().task_id = Some(String::new()), &[(2, Fault::AlteredContent)]),
            (|chain| chain[1].parties.as_mut().unwrap().to.push('x'), &[(2, Fault::AlteredParties)]),
            (|chain| chain[1].content = None, &[(2, Fault::MissingReceipt)]),
            (|chain| drop(chain.remove(1)), &[(3, Fault::MissingPosition)]),
            (|chain| chain.swap(1, 2), &[(3, Fault::MissingPosition), (2, Fault::Reordered)]),
            (|chain| chain[1].receipt_type.push('x'), &[(2, Fault::ForeignLink)]),
            (|chain| chain[1].parents.clear(), &[(2, Fault::ForeignLink)]),
            (|chain| chain[1].created_at = Time::EPOCH, &[(2, Fault::ForeignLink)]),
            (|chain| chain[1].receipt_id = ReceiptId(Uuid::nil()), &[(2, Fault::ForeignLink)]),
            (|chain| chain[1].link = hex::encode(&ORIGIN), &[(2, Fault::ForeignLink), (3, Fault::ForeignLink)]),
        ];
        for (nth, (change, expected)) in changes.iter().enumerate() {
            let mut chain = chain(5);
            change(&mut chain);
            assert_eq!(faults(&chain), *expected, "change {nth}");
        }
    }

    #[test]
    fn a_receipt_that_was_sealed_anew_does_not_fit_the_next() {
        let mut chain = chain(3);
        let salt = hex::decode(chain[1].salt.as_ref().unwrap()).unwrap();
        chain[1].content.as_mut().unwrap().body = "{}".to_owned();
        chain[1].content_hash = hex::encode(&chain[1].content.as_ref().unwrap().digest(&salt));
        let before = Digest::try_from(hex::decode(&chain[0].link).unwrap()).unwrap();
        chain[1].link = hex::encode(&chain[1].link_after(&before).unwrap());
        assert_eq!(faults(&chain), [(3, Fault::ForeignLink)]);
    }

    #[test]
    fn garbage_is_a_fault_and_no_panic() {
        for text in ["", "0", "zz", "é", "00"] {
            let mut chain = chain(1);
            chain[0].link = text.to_owned();
            chain[0].content_hash = text.to_owned();
            chain[0].salt = Some(text.to_owned());
            assert!(faults(&chain).contains(&(1, Fault::ForeignLink)), "{text:?}");
        }
    }
}
