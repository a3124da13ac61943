//! One worker: it claims, renews, reports and ends what it was given, and does so badly by chance: it vanishes with a
//! lease, sleeps beyond its end and then speaks, says things twice, or leaves out where the work is.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Deeds, LEASE, Shared};
use crate::checker::{Invariant, Violation};
use crate::client::{Answer, Client, Endpoint};
use crate::history::Event;
use crate::leases::{Deed, Word};
use crate::rng::Rng;
use crate::stamp;

const TYPES: [&str; 2] = ["chaos", "echo"];
const WAIT_S: u32 = 1;
const CLAIM_MAX: u64 = 2;
/// Of a hundred leases.
const VANISH: u64 = 8;
const OVERSLEEP: u64 = 8;
const OVERSLEEP_MS_MAX: u64 = 400;
const WORK_MS_MAX: u64 = 12;
/// Of a hundred outcomes; the rest fail for good.
const LOCATED: u64 = 62;
const UNLOCATED: u64 = 12;
const RETRYABLE: u64 = 20;
/// An outcome without an answer is sent again: a server may be away for as long as it takes to start one.
const TRIES_MAX: u32 = 60;
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// What was given.
struct Given {
    task_id: String,
    lease_id: String,
}

pub struct Worker {
    shared: Shared,
    name: String,
    key: String,
    rng: Rng,
    client: Option<Client>,
    violations: Vec<Violation>,
}

impl Worker {
    pub fn new(shared: Shared, name: String, key: String, rng: Rng) -> Self {
        Worker { shared, name, key, rng, client: None, violations: Vec::new() }
    }

    pub async fn run(mut self) -> Result<Vec<Violation>> {
        while !self.shared.stopped() {
            for given in self.claim().await? {
                self.attend(&given).await?;
            }
        }
        Ok(self.violations)
    }

    async fn call(&mut self, path: &str, body: &Value) -> Option<Answer> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => {
                let addr = self.shared.board.pick(&mut self.rng)?;
                Client::new(Endpoint { addr, key: self.key.clone() })
            }
        };
        let answer = client.post(path, body).await.ok()?;
        self.client = Some(client);
        Some(answer)
    }

    fn word(&self, event: Event, deed: Deed, given: Option<&Given>) -> Word {
        Word {
            round: self.shared.round,
            event,
            deed,
            worker: self.name.clone(),
            task_id: given.map(|given| given.task_id.clone()),
            lease_id: given.map(|given| given.lease_id.clone()),
            expires_us: None,
            requeued: None,
            note: None,
        }
    }

    async fn claim(&mut self) -> Result<Vec<Given>> {
        self.shared.journal.record(self.word(Event::Invoke, Deed::Claim, None)).await?;
        let body = json!({
            "worker_instance_id": self.name,
            "accept_types": TYPES,
            "max_tasks": 1 + self.rng.below(CLAIM_MAX),
            "wait_seconds": WAIT_S,
        });
        let answer = self.call("/v1/leases/claim", &body).await;
        let tasks =
            answer.as_ref().filter(|answer| answer.success()).and_then(|answer| answer.body["tasks"].as_array());
        let Some(tasks) = tasks else {
            let note = answer.map(|answer| answer.brief());
            self.shared.journal.record(Word { note, ..self.word(Event::Info, Deed::Claim, None) }).await?;
            sleep(TRY_AGAIN).await;
            return Ok(Vec::new());
        };
        let mut all = Vec::new();
        for task in tasks {
            let text = |name: &str| task[name].as_str().unwrap_or_default().to_owned();
            let given = Given { task_id: text("task_id"), lease_id: text("lease_id") };
            let expires_us = stamp::micros(&text("expires_at"));
            self.shared.journal.record(Word { expires_us, ..self.word(Event::Ok, Deed::Claim, Some(&given)) }).await?;
            all.push(given);
        }
        Ok(all)
    }

    async fn attend(&mut self, given: &Given) -> Result<()> {
        let chance = self.rng.below(100);
        // Those who are about to stop do not, or everybody would have to wait for the ends of their leases.
        let honest = self.shared.honest || self.shared.stopped();
        if chance < VANISH && !honest {
            Deeds::count(&self.shared.deeds.vanished);
            return Ok(());
        }
        if chance < VANISH + OVERSLEEP && !honest {
            Deeds::count(&self.shared.deeds.overslept);
            sleep(LEASE + Duration::from_millis(100 + self.rng.below(OVERSLEEP_MS_MAX))).await;
        } else {
            sleep(Duration::from_millis(self.rng.below(WORK_MS_MAX))).await;
        }
        if self.rng.below(3) == 0 {
            let body = json!({"task_id": given.task_id, "lease_id": given.lease_id});
            self.say(Deed::Renew, "/v1/leases/renew", &body, given).await?;
        }
        if self.rng.below(3) == 0 {
            let body = json!({"lease_id": given.lease_id, "progress": {"by": self.name}});
            self.say(Deed::Progress, &format!("/v1/tasks/{}/progress", given.task_id), &body, given).await?;
        }
        self.end(given).await
    }

    async fn end(&mut self, given: &Given) -> Result<()> {
        let chance = self.rng.below(100);
        let result = json!({"by": self.name, "lease": given.lease_id});
        let located = json!({"lease_id": given.lease_id, "result": result, "artifacts": [{"at": given.task_id}]});
        let complete = format!("/v1/tasks/{}/complete", given.task_id);
        if chance < LOCATED {
            return self.insist(Deed::Complete, &complete, &located, given).await.map(drop);
        }
        if chance < LOCATED + UNLOCATED {
            let unlocated = json!({"lease_id": given.lease_id, "result": result});
            let done = self.insist(Deed::Complete, &complete, &unlocated, given).await?;
            if done == Some(Event::Ok) && self.rng.below(3) > 0 {
                self.insist(Deed::Locate, &complete, &located, given).await?;
            }
            return Ok(());
        }
        let retryable = chance < LOCATED + UNLOCATED + RETRYABLE;
        let body = json!({"lease_id": given.lease_id, "error": {"by": self.name}, "retryable": retryable});
        self.insist(Deed::Fail, &format!("/v1/tasks/{}/fail", given.task_id), &body, given).await.map(drop)
    }

    /// Until there is an answer, and sometimes once more after it. None when there never was one.
    async fn insist(&mut self, deed: Deed, path: &str, body: &Value, given: &Given) -> Result<Option<Event>> {
        for _ in 0..TRIES_MAX {
            let event = self.say(deed, path, body, given).await?;
            if event == Event::Info {
                sleep(TRY_AGAIN).await;
                continue;
            }
            if event == Event::Ok {
                Deeds::count(&self.shared.deeds.ended);
            }
            if event == Event::Ok && self.rng.below(4) == 0 && self.say(deed, path, body, given).await? == Event::Fail {
                let detail = format!("lease {}: {deed:?} was acknowledged, and refused when repeated", given.lease_id);
                self.violations.push(Violation::new(Invariant::Reverted, detail));
            }
            return Ok(Some(event));
        }
        Ok(None)
    }

    /// One call about a lease, journaled before and after.
    async fn say(&mut self, deed: Deed, path: &str, body: &Value, given: &Given) -> Result<Event> {
        self.shared.journal.record(self.word(Event::Invoke, deed, Some(given))).await?;
        let answer = self.call(path, body).await;
        let event = match &answer {
            Some(answer) if answer.success() => Event::Ok,
            Some(answer) if answer.refused() => Event::Fail,
            _ => Event::Info,
        };
        if event == Event::Fail {
            Deeds::count(&self.shared.deeds.refused);
        }
        let promised = answer.as_ref().filter(|_| event == Event::Ok);
        let word = Word {
            expires_us: promised.and_then(|answer| stamp::micros(answer.text("expires_at")?)),
            requeued: promised.and_then(|answer| answer.body["requeued"].as_bool()),
            note: answer.as_ref().filter(|_| event != Event::Ok).map(Answer::brief),
            ..self.word(event, deed, Some(given))
        };
        self.shared.journal.record(word).await?;
        Ok(event)
    }
}
