//! A second tenant that has no tasks at all: whatever its key can find out about the others' is a leak.

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::checker::{Invariant, Violation};
use crate::client::{Answer, Client, Endpoint, patiently};
use crate::rng::Rng;

/// Tasks that the foreigner asks for in one round, and those of them that it tries to cancel.
const LOOKS: usize = 40;
const CANCELS: usize = 5;
const PAGE: u32 = 50;
/// Nobody's: what a foreign task has to look like.
const NOBODYS: &str = "01930000-0000-7000-8000-000000000000";

pub struct Foreign {
    key: String,
}

/// What an answer gives away.
fn shown(answer: &Answer) -> (u16, Option<&str>) {
    (answer.status, answer.code())
}

impl Foreign {
    /// Makes the tenant and a key that sees everything in it.
    pub async fn introduce(at: &Endpoint, name: &str) -> Result<Foreign> {
        let mut client = Client::new(at.clone());
        let tenant = client.post("/admin/tenants", &json!({"name": name})).await?;
        ensure!(tenant.success(), "making a second tenant: {}", tenant.brief());
        let wanted = json!({"tenant": name, "principal": "human:stranger", "role": "admin"});
        let key = client.post("/admin/keys", &wanted).await?;
        ensure!(key.success(), "making the second tenant's key: {}", key.brief());
        Ok(Foreign { key: key.text("key").context("an answer without the key")?.to_owned() })
    }

    /// Asks for some of these tasks of the first tenant, and for the list.
    pub async fn look(&self, at: &Endpoint, task_ids: Vec<String>, rng: &mut Rng) -> Result<Vec<Violation>> {
        let mut client = Client::new(Endpoint { addr: at.addr, key: self.key.clone() });
        let nobodys = patiently(async || client.fetch(NOBODYS).await).await?;
        let uncancelable = patiently(async || client.cancel(NOBODYS).await).await?;
        ensure!(nobodys.refused() && uncancelable.refused(), "nobody's task: {}", nobodys.brief());
        let mut answers = Vec::new();
        for (index, task_id) in rng.sample(task_ids, LOOKS).into_iter().enumerate() {
            let answer = patiently(async || client.fetch(&task_id).await).await?;
            answers.push((task_id.clone(), "read", answer, &nobodys));
            if index < CANCELS {
                let answer = patiently(async || client.cancel(&task_id).await).await?;
                answers.push((task_id, "cancel", answer, &uncancelable));
            }
        }
        let mut violations: Vec<Violation> = answers
            .iter()
            .filter_map(|(task_id, what, answer, expected)| judge(task_id, what, answer, expected))
            .collect();
        let list = patiently(async || client.list(PAGE, None).await).await?;
        let listed = list.body["tasks"].as_array().map_or(0, Vec::len);
        if !list.success() || listed > 0 {
            let detail = format!("a tenant without tasks lists {listed} of them ({})", list.status);
            violations.push(Violation::new(Invariant::Foreign, detail));
        }
        Ok(violations)
    }
}

fn judge(task_id: &str, what: &str, answer: &Answer, expected: &Answer) -> Option<Violation> {
    let detail =
        || format!("task {task_id}: a foreign {what} is answered {}, nobody's {:?}", answer.brief(), shown(expected));
    (shown(answer) != shown(expected)).then(|| Violation::new(Invariant::Foreign, detail()))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn answer(status: u16, body: Value) -> Answer {
        Answer { status, replay: false, body }
    }

    #[test]
    fn anything_but_nobodys_answer_is_a_leak() {
        let nobodys = answer(404, json!({"error": "not_found"}));
        assert!(judge("t", "read", &answer(404, json!({"error": "not_found"})), &nobodys).is_none());
        for leak in [
            answer(200, json!({"task_id": "t"})),
            answer(403, json!({"error": "forbidden"})),
            answer(404, json!({"error": "task_is_anothers"})),
        ] {
            let found = judge("t", "read", &leak, &nobodys).unwrap();
            assert_eq!(found.invariant, Invariant::Foreign, "{leak:?}");
        }
    }
}
