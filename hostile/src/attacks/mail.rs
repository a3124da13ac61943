//! Mail: one key's waiting cursors, searches and patterns that are dear to work out, and the largest message to as many as one may
//! write to.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Field, waits};
use crate::caller::{Caller, Target};
use crate::marks::Check;
use crate::stage::MAIL_PROJECT;
use crate::swarm::Next;
use crate::wire;

/// Callers at a time, each on a connection of its own.
const CALLERS: usize = 32;
/// After a refusal: an attack by what calls cost, not by their number.
const PAUSE: Duration = Duration::from_millis(20);
/// Words of one query.
const WORDS: usize = 2_000;
/// Paths of one reservation.
const PATHS: usize = 200;
/// What fits into one request beside its recipients.
const BODY_BYTES: usize = 1_000_000;

/// As many followed inboxes as there are places, in which nothing arrives; then the key is revoked.
pub async fn cursors(field: &Field) -> Result<Vec<Check>> {
    let mail = &field.cast.mail;
    let path = format!(
        "/v1/mail/inbox/events?project_key={MAIL_PROJECT}&agent_name={}&position_now=false&limit=1&after={}&wait_seconds=20",
        mail.agents[0], mail.cursor
    );
    let key = mail.minted.key.clone();
    let next: Next = Arc::new(move || (path.clone(), Some(key.clone())));
    let keys = std::slice::from_ref(&mail.minted.id);
    waits::held_until_revoked(field, field.to, field.scale.waits, &next, keys).await
}

/// Queries of thousands of words, of prefixes that everything begins with, and deep in parentheses.
pub async fn searches(field: &Field) -> Result<Vec<Check>> {
    let words = (0..WORDS).map(|number| format!("w{}*", number % 10)).collect::<Vec<_>>();
    let queries =
        [words.join(" OR "), format!("NOT {}", words.join(" NOT ")), "(".repeat(WORDS) + "w" + &")".repeat(WORDS)];
    let bodies = queries.map(|query| json!({ "project_key": MAIL_PROJECT, "query": query, "limit": 1_000 }));
    repeat(field, "/v1/mail/search", bodies.into()).await
}

/// Patterns on which a reader that goes back would be busy for ever, each compared with those of the calls before.
pub async fn patterns(field: &Field) -> Result<Vec<Check>> {
    let agents = &field.cast.mail.agents;
    let bodies = agents.iter().take(4).enumerate().map(|(turn, agent)| {
        let path = |number: usize| format!("{}{}{}", "*a".repeat(40), "{a,b}".repeat(8), number * 4 + turn);
        let paths: Vec<String> = (0..PATHS).map(path).collect();
        json!({ "project_key": MAIL_PROJECT, "agent_name": agent, "paths": paths, "exclusive": true, "ttl_seconds": 60 })
    });
    repeat(field, "/v1/mail/file_reservations", bodies.collect()).await
}

/// The largest message that there is, to everybody in the project.
pub async fn large(field: &Field) -> Result<Vec<Check>> {
    let (sender, to) = (&field.cast.mail.agents[0], &field.cast.mail.agents[1..]);
    let message = json!({
        "project_key": MAIL_PROJECT, "sender_name": sender, "to": to, "subject": "large", "body_md": "w ".repeat(BODY_BYTES / 2),
    });
    repeat(field, "/v1/mail/messages", vec![message]).await
}

/// The same calls again and again, by one key, until the time is over.
async fn repeat(field: &Field, path: &'static str, bodies: Vec<Value>) -> Result<Vec<Check>> {
    let bodies: Arc<[Vec<u8>]> = bodies.iter().map(|body| body.to_string().into_bytes()).collect();
    let mut callers = JoinSet::new();
    for number in 0..CALLERS {
        let key = field.cast.mail.minted.key.clone();
        let target = Target { from: wire::attacker(number % field.scale.addresses), to: field.to, key };
        let (bodies, tally) = (Arc::clone(&bodies), Arc::clone(&field.tally));
        callers.spawn(async move {
            let mut caller = Caller::new(target);
            tally.opened();
            for turn in number.. {
                match caller.call(Method::POST, path, bodies[turn % bodies.len()].clone()).await {
                    Ok(answer) => tally.answered(answer.status),
                    Err(_) => tally.refused(),
                }
                sleep(PAUSE).await;
            }
        });
    }
    sleep(field.scale.hold).await;
    Ok(Vec::new())
}
