//! Reads what the server shows of its ledger: receipts by addressee, from where the last reading ended; tasks; and the
//! open obligations of each principal.

use std::collections::{BTreeMap, HashMap, HashSet};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::books::{self, ASSIGNED, Receipt, Shown};
use crate::checker::{Invariant, Violation};
use crate::client::{Answer, Client, Endpoint, patiently};
use crate::history::History;
use crate::stamp;

/// As many as a page may have by the settings that the scenarios give their server.
pub const PAGE: u32 = 1_000;
/// Four million entries: a list that does not end is a bug, not a reason to hang.
const PAGES_MAX: u32 = 4_000;
/// Who gets what the workers say: the server itself.
const SYSTEM: &str = "system:asyncgate";

#[derive(Default)]
pub struct Ledger {
    /// The principals that own tasks, as `agent:a`.
    pub owners: Vec<String>,
    /// The last receipt read of each addressee.
    places: HashMap<String, String>,
    receipts: Vec<Receipt>,
    by_task: HashMap<String, Vec<usize>>,
    /// Tasks that have been seen to have ended and were judged: nothing about them may change, but their place may be added.
    ended: HashSet<String>,
}

/// What the server shows at one moment.
pub struct Reading {
    /// The tasks to be judged; none where the list does not show one.
    tasks: HashMap<String, Option<Shown>>,
    /// The open obligations of each owner.
    served: BTreeMap<String, Vec<String>>,
}

impl Ledger {
    pub fn of(owners: Vec<String>) -> Self {
        Ledger { owners, ..Ledger::default() }
    }

    pub fn receipts(&self) -> usize {
        self.receipts.len()
    }

    /// What is new since the last reading.
    pub async fn read(&mut self, at: &Endpoint) -> Result<Reading> {
        let mut client = Client::new(at.clone());
        let new = self.read_receipts(&mut client).await?;
        let tasks = self.read_tasks(&mut client, new).await?;
        let served = self.read_obligations(&mut client).await?;
        Ok(Reading { tasks, served })
    }

    /// The reading with everything known before about the same tasks.
    pub fn judge(&mut self, reading: &Reading, history: &History, skew_us: i64) -> Vec<Violation> {
        let leases = books::by_task(&history.leases);
        let mut violations = Vec::new();
        for (task_id, task) in &reading.tasks {
            let Some(task) = task else {
                let detail = format!("task {task_id} has receipts and is not in the list");
                violations.push(Violation::new(Invariant::Lost, detail));
                continue;
            };
            let receipts: Vec<&Receipt> = self.receipts_of(task_id).collect();
            let held = leases.get(task_id.as_str()).map(Vec::as_slice).unwrap_or_default();
            violations.extend(books::judge_task(task, &receipts, held, skew_us));
        }
        violations.extend(books::judge_obligations(self.receipts.iter(), &reading.served));
        let ended = reading.tasks.iter().filter(|(_, task)| task.as_ref().is_some_and(Shown::has_ended));
        self.ended.extend(ended.map(|(task_id, _)| task_id.clone()));
        violations
    }

    /// Forgets what was read, so that the next judgement is of the whole ledger as it is now.
    pub fn begin_anew(&mut self) {
        *self = Ledger::of(std::mem::take(&mut self.owners));
    }

    fn receipts_of(&self, task_id: &str) -> impl Iterator<Item = &Receipt> {
        self.by_task.get(task_id).into_iter().flatten().map(|at| &self.receipts[*at])
    }

    /// The tasks that new receipts are about.
    async fn read_receipts(&mut self, client: &mut Client) -> Result<HashSet<String>> {
        let mut touched = HashSet::new();
        for addressee in self.owners.clone().into_iter().chain([SYSTEM.to_owned()]) {
            for _ in 0..PAGES_MAX {
                let place = self.places.get(&addressee);
                let since = place.map(|place| format!("&since_receipt_id={place}")).unwrap_or_default();
                let (kind, id) = addressee.split_once(':').context("an addressee without its kind")?;
                let path = format!("/v1/receipts?to_kind={kind}&to_id={id}&limit={PAGE}{since}");
                let page = read(client, &path).await?;
                let items = page.body["receipts"].as_array().context("a page without receipts")?;
                for item in items {
                    let receipt = receipt(item).with_context(|| format!("a receipt as {item}"))?;
                    self.places.insert(addressee.clone(), receipt.id.clone());
                    if let Some(task_id) = &receipt.task_id {
                        touched.insert(task_id.clone());
                        self.by_task.entry(task_id.clone()).or_default().push(self.receipts.len());
                    }
                    self.receipts.push(receipt);
                }
                if items.len() < PAGE as usize {
                    break;
                }
            }
        }
        Ok(touched)
    }

    /// The tasks to be judged: those just heard of and those that have not ended. Newest first, until all were met.
    async fn read_tasks(&self, client: &mut Client, new: HashSet<String>) -> Result<HashMap<String, Option<Shown>>> {
        let assigned = self.receipts.iter().filter(|receipt| receipt.kind == ASSIGNED);
        let open = assigned.filter_map(|receipt| receipt.task_id.clone()).filter(|id| !self.ended.contains(id));
        let mut wanted: HashMap<String, Option<Shown>> = open.chain(new).map(|task_id| (task_id, None)).collect();
        let mut missing = wanted.len();
        let mut cursor = String::new();
        for _ in 0..PAGES_MAX {
            if missing == 0 {
                return Ok(wanted);
            }
            let page = read(client, &format!("/v1/tasks?limit={PAGE}{cursor}")).await?;
            for item in page.body["tasks"].as_array().context("a page without tasks")? {
                let task = shown(item).with_context(|| format!("a task as {item}"))?;
                if let Some(place) = wanted.get_mut(&task.task_id) {
                    missing -= usize::from(place.is_none());
                    *place = Some(task);
                }
            }
            match page.text("next_cursor") {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return Ok(wanted),
            }
        }
        bail!("the task list does not end after {PAGES_MAX} pages");
    }

    async fn read_obligations(&self, client: &mut Client) -> Result<BTreeMap<String, Vec<String>>> {
        let mut served = BTreeMap::new();
        for owner in &self.owners {
            let (kind, id) = owner.split_once(':').context("an owner without its kind")?;
            let mut open: Vec<String> = Vec::new();
            for _ in 0..PAGES_MAX {
                let since = open.last().map(|last| format!("&since_receipt_id={last}")).unwrap_or_default();
                let path = format!("/v1/obligations/open?principal_kind={kind}&principal_id={id}&limit={PAGE}{since}");
                let page = read(client, &path).await?;
                let items = page.body["open_obligations"].as_array().context("a page without obligations")?;
                let ids = items.iter().map(|item| text(item, "receipt_id").context("an obligation without its id"));
                open.extend(ids.collect::<Result<Vec<String>>>()?);
                if items.len() < PAGE as usize {
                    break;
                }
            }
            served.insert(owner.clone(), open);
        }
        Ok(served)
    }
}

/// How many tasks have one of these states.
pub async fn count(client: &mut Client, statuses: &[&str]) -> Result<usize> {
    let mut found = 0;
    for status in statuses {
        let page = read(client, &format!("/v1/tasks?limit={PAGE}&status={status}")).await?;
        found += page.body["tasks"].as_array().context("a page without tasks")?.len();
    }
    Ok(found)
}

async fn read(client: &mut Client, path: &str) -> Result<Answer> {
    let answer = patiently(async || client.get(path).await).await.with_context(|| format!("reading {path}"))?;
    ensure!(answer.success(), "reading {path}: {}", answer.brief());
    Ok(answer)
}

fn text(item: &Value, name: &str) -> Option<String> {
    item.get(name)?.as_str().map(str::to_owned)
}

fn receipt(item: &Value) -> Option<Receipt> {
    let to = &item["to"];
    let parents = item["parents"].as_array()?.iter().filter_map(|parent| parent.as_str().map(str::to_owned));
    Some(Receipt {
        id: text(item, "receipt_id")?,
        kind: text(item, "receipt_type")?,
        to: format!("{}:{}", to["kind"].as_str()?, to["id"].as_str()?),
        task_id: text(item, "task_id"),
        lease_id: text(item, "lease_id"),
        parents: parents.collect(),
        created_us: stamp::micros(item["created_at"].as_str()?)?,
        attempt: item["body"]["attempt"].as_i64(),
    })
}

fn shown(item: &Value) -> Option<Shown> {
    let result = &item["result"];
    Some(Shown {
        task_id: text(item, "task_id")?,
        status: text(item, "status")?,
        attempt: item["attempt"].as_i64()?,
        located: !result["artifacts"].is_null() || !result["delivery_proof"].is_null(),
    })
}
