//! Tasks as a workload: the load that creates and cancels, and the audit that asks a server about them afterwards. What a
//! scenario itself has to judge it judges by this one's tally.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result};

use crate::audit::Audit;
use crate::checker::{Invariant, Violation};
use crate::client::{Client, Endpoint};
use crate::foreign::Foreign;
use crate::history::Op;
use crate::journal::Journal;
use crate::load::{Hands, Pace, Tally};
use crate::rng;
use crate::workload::{Count, Held, Signals, Site, Workload};

pub struct Tasks {
    journal: Journal,
    audit: Audit,
    /// How the next load asks, and as whom.
    asking: Option<(Pace, Vec<Endpoint>)>,
    hands: Option<Hands>,
    /// Of the last load.
    pub tally: Tally,
}

impl Tasks {
    pub fn new(journal: Journal, connections: u32, seed: u64, resolved: u64) -> Self {
        let mut audit = Audit::new(connections, seed);
        audit.resolved = resolved;
        Tasks { journal, audit, asking: None, hands: None, tally: Tally::default() }
    }

    /// Before each load.
    pub async fn ask_as(&mut self, pace: Pace, callers: Vec<Endpoint>, at: &Site) {
        // A server takes a moment to verify a key that it has not seen since its start, and the load may be short.
        let _ = Client::new(at.endpoint.clone()).list(1, None).await;
        self.asking = Some((pace, callers));
    }

    /// Whose tasks they are, in turn.
    pub fn owned_by(&mut self, owners: Vec<String>) {
        self.audit.owners = owners.into();
    }

    /// When the tasks of the last round say they were made.
    pub fn created_us(&self) -> &HashMap<Op, i64> {
        &self.audit.created_us
    }

    async fn judge(&mut self, round: u32, at: &Endpoint) -> Result<Vec<Violation>> {
        let mut violations: Vec<Violation> = self.tally.violations.drain(..).map(|(_, violation)| violation).collect();
        violations.extend(unexpected(&self.tally));
        violations.extend(self.audit.after_round(round, at, &self.journal).await?);
        Ok(violations)
    }
}

/// No fault excuses it.
fn unexpected(tally: &Tally) -> Vec<Violation> {
    let internal = tally.unknowns.iter().filter(|(kind, _)| kind.starts_with("500 "));
    internal.map(|(kind, count)| Violation::new(Invariant::Unserved, format!("{count} × {kind}"))).collect()
}

impl Workload for Tasks {
    fn name(&self) -> &'static str {
        "tasks"
    }

    fn open<'a>(&'a mut self, at: &'a Site) -> Held<'a, ()> {
        Box::pin(async move {
            let name = format!("stranger-{:x}", rng::fresh_seed());
            self.audit.foreign = Some(Foreign::introduce(&at.endpoint, &name).await?);
            Ok(())
        })
    }

    fn start(&mut self, round: u32, _at: &Site, signals: &Signals) -> Result<()> {
        let (pace, callers) = self.asking.take().context("nobody asks for tasks")?;
        self.hands = Some(Hands::start(round, pace, &callers, &self.journal, signals));
        Ok(())
    }

    fn finish(&mut self) -> Held<'_, Count> {
        Box::pin(async move {
            self.tally = self.hands.take().context("there was no load")?.finish().await?;
            let Tally { acknowledged, refused, unknown, .. } = self.tally;
            Ok(Count { acknowledged, refused, unknown })
        })
    }

    fn check<'a>(&'a mut self, round: u32, at: &'a Site) -> Held<'a, Vec<Violation>> {
        Box::pin(self.judge(round, &at.endpoint))
    }

    fn close<'a>(&'a mut self, at: &'a Site) -> Held<'a, Vec<Violation>> {
        Box::pin(async move {
            let violations = self.audit.everything(&at.endpoint, &self.journal).await?;
            self.journal.verify()?;
            Ok(violations)
        })
    }

    fn resolved(&self) -> u64 {
        self.audit.resolved
    }

    fn journal(&self) -> &Path {
        self.journal.path()
    }

    fn summary(&self) -> Option<String> {
        None
    }
}
