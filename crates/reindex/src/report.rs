//! What a run has done, for people and for programs.

use serde::Serialize;
use waybill_archive::layout::Refusals;
use waybill_mail::import::Put;

/// Of those that were refused so many are told; all are counted.
const REFUSED_TOLD_MAX: usize = 10_000;
/// Names in a list for people.
const NAMES_MAX: usize = 1_000;

/// Records of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    pub written: u64,
    /// Of those, under another number than their own, which is taken.
    pub renumbered: u64,
    /// Were there already.
    pub known: u64,
    pub refused: u64,
}

/// A file that was not taken, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    pub file: String,
    pub why: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    pub projects: Tally,
    pub agents: Tally,
    pub messages: Tally,
    pub reservations: Tally,
    pub contacts: Tally,
    pub build_slots: Tally,
    pub products: Tally,
    /// Deliveries that were marked as read or acknowledged.
    pub read: u64,
    /// Agents that messages name and that have no profile: they are there, retired.
    pub without_profile: Vec<String>,
    /// Attachments that are not in the archive any more, by message.
    pub attachments_lost: Vec<Refused>,
    /// What such an archive does not hold.
    pub not_in_archive: Vec<&'static str>,
    pub refused: Vec<Refused>,
    pub refused_total: u64,
}

impl Report {
    pub fn refuse(&mut self, file: impl Into<String>, why: impl Into<String>) {
        self.refused_total += 1;
        if self.refused.len() < REFUSED_TOLD_MAX {
            self.refused.push(Refused { file: file.into(), why: why.into() });
        }
    }

    pub fn refuse_all(&mut self, refusals: &Refusals) {
        for (file, why) in &refusals.told {
            self.refuse(file.clone(), why.clone());
        }
        self.refused_total += (refusals.count - refusals.told.len()) as u64;
    }

    pub(crate) fn lose(&mut self, file: &str, why: String) {
        if self.attachments_lost.len() < NAMES_MAX {
            self.attachments_lost.push(Refused { file: file.to_owned(), why });
        }
    }

    pub(crate) fn make_up(&mut self, name: String) {
        if self.without_profile.len() < NAMES_MAX {
            self.without_profile.push(name);
        }
    }

    /// Counts an outcome of the kind that `tally` picks.
    pub(crate) fn count(&mut self, tally: fn(&mut Self) -> &mut Tally, put: Put, file: impl FnOnce() -> String) {
        let of = tally(self);
        match put {
            Put::Written => of.written += 1,
            Put::Renumbered => {
                of.written += 1;
                of.renumbered += 1;
            }
            Put::Known => of.known += 1,
            Put::Refused(why) => {
                of.refused += 1;
                self.refuse(file(), why);
            }
        }
    }

    /// Everything that the archive holds is in the database.
    pub fn is_whole(&self) -> bool {
        self.refused_total == 0 && self.attachments_lost.is_empty()
    }

    pub fn written(&self) -> u64 {
        let all = [
            self.projects,
            self.agents,
            self.messages,
            self.reservations,
            self.contacts,
            self.build_slots,
            self.products,
        ];
        all.iter().map(|tally| tally.written).sum::<u64>() + self.read
    }

    /// Another run's, of another tenant.
    pub fn add(&mut self, other: Report) {
        let pairs = [
            (&mut self.projects, other.projects),
            (&mut self.agents, other.agents),
            (&mut self.messages, other.messages),
            (&mut self.reservations, other.reservations),
            (&mut self.contacts, other.contacts),
            (&mut self.build_slots, other.build_slots),
            (&mut self.products, other.products),
        ];
        for (own, other) in pairs {
            own.written += other.written;
            own.renumbered += other.renumbered;
            own.known += other.known;
            own.refused += other.refused;
        }
        self.read += other.read;
        self.without_profile.extend(other.without_profile);
        self.attachments_lost.extend(other.attachments_lost);
        self.refused.extend(other.refused);
        self.refused_total += other.refused_total;
        self.not_in_archive = other.not_in_archive;
    }
}
