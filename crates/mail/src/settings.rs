//! Bounds of mail, as the section `[mail]` has them.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use waybill_checkout::Roots;
use waybill_kernel::ranges::{BYTES, KEEP_SECONDS, MANY, SECONDS, Setting, check, setting};

/// The most that a subject, a body and a file may ever be allowed to have. Whoever reads an archive takes as much and no more, so a server
/// that allowed more would write messages which could not come back from their archive.
pub const SUBJECT_BYTES_MAX: usize = 64 << 10;
pub const BODY_BYTES_MAX: usize = 32 << 20;
pub const ATTACHMENT_BYTES_MAX: usize = 64 << 20;

const fn bytes_up_to(most: usize) -> RangeInclusive<i64> {
    *BYTES.start()..=most as i64
}

/// Each recipient is woken after the commit, and a transaction wakes at most 128.
const RECIPIENTS: RangeInclusive<i64> = 1..=120;
/// Every call that reserves compares its paths with them.
const RESERVATIONS: RangeInclusive<i64> = 1..=20_000;
/// As long as any reservation may last.
const ESCALATION_SECONDS: RangeInclusive<i64> = 60..=31_536_000;

/// What is done about acknowledgements that are overdue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AckEscalation {
    /// They are in the views that ask for them.
    #[default]
    Off,
    /// Each is also told once in the log.
    Log,
    /// And the inbox that has it is reserved for its agent, shared, so that the project sees it.
    FileReservation,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Of one tenant.
    pub projects_max: i64,
    /// Of one tenant, in all its projects, retired ones included.
    pub agents_max: i64,
    /// Contacts asked for by one agent, whatever came of them.
    pub contacts_max: i64,
    /// Of one message: to, cc and bcc together.
    pub recipients_max: usize,
    pub subject_bytes_max: usize,
    pub body_bytes_max: usize,
    /// Of one file, decoded.
    pub attachment_bytes_max: usize,
    /// Of all files of one message, decoded.
    pub attachments_bytes_max: usize,
    /// Files of one message.
    pub attachments_max: usize,
    /// Images of messages become WebP where that is smaller, unless a call says otherwise.
    pub convert_images: bool,
    /// Active reservations of one project.
    pub reservations_max: i64,
    /// Active reservations of one agent.
    pub reservations_of_agent_max: i64,
    /// Who wrote to whom within this time may write back.
    pub contact_auto_ttl_s: u64,
    /// An acknowledgement that was asked for is overdue after this.
    pub ack_ttl_s: u64,
    pub ack_escalation: AckEscalation,
    /// How often overdue ones are looked for, unless that is off.
    pub ack_scan_interval_s: u64,
    /// How long such a reservation lasts.
    pub ack_escalation_ttl_s: u64,
    /// Agents that have done nothing for so long are retired, unless they are exempt; 0 for never.
    pub agents_inactive_s: u64,
    /// How long deliveries can be followed by cursor.
    pub events_retention_s: u64,
    /// How often deliveries and keys that are over are looked for.
    pub sweep_interval_s: u64,
    /// What is over stays for so long: reservations that were released or have expired.
    pub reservations_retention_s: u64,
    /// Waits for the database of so many milliseconds (95 of 100 calls) are yellow in `health_check`, and red.
    pub pool_yellow_ms: u64,
    pub pool_red_ms: u64,
    /// Let projects be named after folders whose contents do not last, such as /tmp.
    pub allow_ephemeral_projects: bool,
    /// Folders beneath which the server may read and write files of projects. None by default: then files come as bytes in
    /// the call.
    pub project_roots: Vec<PathBuf>,
    /// Folders and files of the server's own, which stay closed where a project root holds them. Whoever starts the server says
    /// them, and no file.
    #[serde(skip)]
    pub closed: Vec<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            projects_max: 1_000,
            agents_max: 10_000,
            contacts_max: 1_000,
            recipients_max: 100,
            subject_bytes_max: 1 << 10,
            body_bytes_max: 1 << 20,
            attachment_bytes_max: 10 << 20,
            attachments_bytes_max: 20 << 20,
            attachments_max: 16,
            convert_images: true,
            reservations_max: 5_000,
            reservations_of_agent_max: 500,
            contact_auto_ttl_s: 86_400,
            ack_ttl_s: 1_800,
            ack_escalation: AckEscalation::Off,
            ack_scan_interval_s: 60,
            ack_escalation_ttl_s: 3_600,
            agents_inactive_s: 30 * 86_400,
            events_retention_s: 30 * 86_400,
            sweep_interval_s: 60,
            reservations_retention_s: 30 * 86_400,
            pool_yellow_ms: 10,
            pool_red_ms: 50,
            allow_ephemeral_projects: false,
            project_roots: Vec::new(),
            closed: Vec::new(),
        }
    }
}

impl Settings {
    pub fn ranges(&self) -> Vec<Setting> {
        vec![
            setting("projects_max", self.projects_max, MANY),
            setting("agents_max", self.agents_max, MANY),
            setting("contacts_max", self.contacts_max, MANY),
            setting("recipients_max", self.recipients_max, RECIPIENTS),
            setting("subject_bytes_max", self.subject_bytes_max, bytes_up_to(SUBJECT_BYTES_MAX)),
            setting("body_bytes_max", self.body_bytes_max, bytes_up_to(BODY_BYTES_MAX)),
            setting("attachment_bytes_max", self.attachment_bytes_max, bytes_up_to(ATTACHMENT_BYTES_MAX)),
            setting("attachments_bytes_max", self.attachments_bytes_max, BYTES),
            setting("attachments_max", self.attachments_max, 0..=100),
            setting("reservations_max", self.reservations_max, RESERVATIONS),
            setting("reservations_of_agent_max", self.reservations_of_agent_max, RESERVATIONS),
            setting("contact_auto_ttl_s", self.contact_auto_ttl_s, SECONDS),
            setting("ack_ttl_s", self.ack_ttl_s, SECONDS),
            setting("ack_scan_interval_s", self.ack_scan_interval_s, SECONDS),
            setting("ack_escalation_ttl_s", self.ack_escalation_ttl_s, ESCALATION_SECONDS),
            setting("agents_inactive_s", self.agents_inactive_s, KEEP_SECONDS),
            setting("events_retention_s", self.events_retention_s, SECONDS),
            setting("sweep_interval_s", self.sweep_interval_s, SECONDS),
            setting("reservations_retention_s", self.reservations_retention_s, SECONDS),
            setting("pool_yellow_ms", self.pool_yellow_ms, 0..=600_000),
            setting("pool_red_ms", self.pool_red_ms, 0..=600_000),
        ]
    }

    /// What could not work, in words for whoever wrote the file.
    pub fn check(&self) -> std::result::Result<(), String> {
        check("mail", &self.ranges())?;
        match self.project_roots.iter().find(|root| !root.is_absolute()) {
            Some(root) => {
                Err(format!("mail.project_roots has {}; its folders must be absolute paths.", root.display()))
            }
            None => Ok(()),
        }
    }

    pub(crate) fn roots(&self) -> Roots {
        Roots { open: self.project_roots.clone(), closed: self.closed.clone() }
    }

    pub(crate) fn contact_auto_ttl(&self) -> Duration {
        Duration::from_secs(self.contact_auto_ttl_s)
    }

    pub(crate) fn ack_ttl(&self) -> Duration {
        Duration::from_secs(self.ack_ttl_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_of_nothing_would_refuse_everything_and_is_refused_itself() {
        Settings::default().check().unwrap();
        for none in [
            Settings { subject_bytes_max: 0, ..Settings::default() },
            Settings { body_bytes_max: 0, ..Settings::default() },
            Settings { attachment_bytes_max: 0, ..Settings::default() },
        ] {
            assert!(none.check().unwrap_err().contains("bytes_max"), "{none:?}");
        }
    }

    #[test]
    fn what_could_not_be_read_back_from_an_archive_cannot_be_allowed() {
        let of = |subject_bytes_max: usize, body_bytes_max: usize, attachment_bytes_max: usize| {
            let bounds = Settings { subject_bytes_max, body_bytes_max, attachment_bytes_max, ..Settings::default() };
            bounds.check()
        };
        let most = (SUBJECT_BYTES_MAX, BODY_BYTES_MAX, ATTACHMENT_BYTES_MAX);
        assert_eq!(of(most.0, most.1, most.2), Ok(()));
        for (more, name) in [
            (of(most.0 + 1, most.1, most.2), "mail.subject_bytes_max"),
            (of(most.0, most.1 + 1, most.2), "mail.body_bytes_max"),
            (of(most.0, most.1, most.2 + 1), "mail.attachment_bytes_max"),
        ] {
            assert!(more.unwrap_err().starts_with(name), "{name}");
        }
    }
}
