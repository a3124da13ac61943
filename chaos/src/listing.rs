//! Walks the task list. The whole list is read at the end; after a round only the part that holds the round, whichever
//! way the server orders its pages.

use std::collections::HashMap;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::checker::Listed;
use crate::client::{Client, Endpoint, patiently};
use crate::history::History;

const PAGE: u32 = 200;
/// Four million tasks, far above what a run creates: a list that does not end is a bug, not a reason to hang.
const PAGES_MAX: u32 = 20_000;

#[derive(Default)]
pub struct Listing {
    /// Cursor of the last page of the last complete walk: with oldest first, the new round begins there.
    resume: Option<String>,
}

/// Which round made each promised task. Taken once per walk: nothing is created while the list is read.
type Rounds = HashMap<String, u32>;

pub fn rounds(history: &History) -> Rounds {
    history.iter().filter_map(|(_, task)| Some((task.task_id.clone()?, task.round))).collect()
}

struct Page {
    tasks: Vec<Listed>,
    next: Option<String>,
}

impl Page {
    fn holds(&self, round: u32, rounds: &Rounds) -> bool {
        self.tasks.iter().any(|item| rounds.get(&item.task_id) == Some(&round))
    }
}

impl Listing {
    pub async fn round(&mut self, round: u32, at: &Endpoint, rounds: &Rounds) -> Result<Vec<Listed>> {
        let mut client = Client::new(at.clone());
        let newest_first = page(&mut client, None).await?.holds(round, rounds);
        let (from, until) = match self.resume.clone() {
            // Only old tasks on the first page: the round stands at the end, after what was walked last time.
            Some(cursor) if !newest_first => (Some(cursor), None),
            _ => (None, newest_first.then_some(round)),
        };
        self.walk(&mut client, from, until, rounds).await
    }

    pub async fn everything(&mut self, at: &Endpoint, rounds: &Rounds) -> Result<Vec<Listed>> {
        self.walk(&mut Client::new(at.clone()), None, None, rounds).await
    }

    /// To the end, or, given a round, to the first page without it.
    async fn walk(
        &mut self,
        client: &mut Client,
        from: Option<String>,
        until_without: Option<u32>,
        rounds: &Rounds,
    ) -> Result<Vec<Listed>> {
        let mut listed = Vec::new();
        let mut cursor = from;
        for _ in 0..PAGES_MAX {
            let page = page(client, cursor.as_deref()).await?;
            let past = until_without.is_some_and(|round| !page.holds(round, rounds));
            listed.extend(page.tasks);
            match page.next {
                Some(next) if !past => cursor = Some(next),
                next => {
                    if next.is_none() {
                        self.resume = cursor;
                    }
                    identify(client, &mut listed, rounds).await?;
                    return Ok(listed);
                }
            }
        }
        bail!("the task list does not end after {PAGES_MAX} pages");
    }
}

async fn page(client: &mut Client, cursor: Option<&str>) -> Result<Page> {
    let answer = patiently(async || client.list(PAGE, cursor).await).await.context("listing tasks")?;
    if !answer.success() {
        bail!("listing tasks: {}", answer.brief());
    }
    let items = answer.body.get("tasks").and_then(Value::as_array).context("a list without tasks")?;
    let tasks = items.iter().map(listed).collect::<Result<_>>()?;
    Ok(Page { tasks, next: answer.text("next_cursor").map(str::to_owned) })
}

fn listed(item: &Value) -> Result<Listed> {
    let text = |name: &str| item.get(name).and_then(Value::as_str).map(str::to_owned);
    let task_id = text("task_id").context("a listed task without task_id")?;
    Ok(Listed { task_id, payload: item.get("payload").cloned(), status: text("status") })
}

/// A list may leave payloads out. Of a task that was promised to nobody only the payload says which operation made it.
async fn identify(client: &mut Client, listed: &mut [Listed], rounds: &Rounds) -> Result<()> {
    for item in listed.iter_mut().filter(|item| item.payload.is_none() && !rounds.contains_key(&item.task_id)) {
        item.payload = client.fetch(&item.task_id).await?.body.get("payload").cloned();
    }
    Ok(())
}
