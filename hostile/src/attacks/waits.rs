//! Calls that wait and streams that stay open take a place each, and cost their caller nothing. At the end the operator revokes
//! the keys, and all of them have to end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use http::Method;
use tokio::time::sleep;

use super::Field;
use crate::caller::{CALL_MAX, Target};
use crate::marks::Check;
use crate::stage::Attacker;
use crate::swarm::{Next, Swarm};
use crate::wire;

/// Requests at a time on one connection, as many as servers of HTTP/2 mostly allow.
const PER_CONNECTION: usize = 128;
const POLL: Duration = Duration::from_millis(20);

pub async fn of_one_key(field: &Field) -> Result<Vec<Check>> {
    let crowd = Crowd { field, attackers: &field.cast.attackers[..1], count: field.scale.waits };
    crowd.run(small_wait).await
}

pub async fn of_a_tenant(field: &Field) -> Result<Vec<Check>> {
    let crowd = Crowd { field, attackers: &field.cast.attackers, count: field.scale.waits };
    crowd.run(small_wait).await
}

/// Short waits, so that many of them end during the attack, and at the same time.
pub async fn for_large_tasks(field: &Field) -> Result<Vec<Check>> {
    let crowd = Crowd { field, attackers: &field.cast.attackers[..1], count: field.scale.waits / 4 };
    crowd.run(|_| format!("/v1/tasks/{}?wait_seconds=2", field.cast.large_tasks[0])).await
}

pub async fn of_events(field: &Field) -> Result<Vec<Check>> {
    let crowd = Crowd { field, attackers: &field.cast.attackers[..1], count: field.scale.event_streams };
    crowd.run(|_| "/v1/events".to_owned()).await
}

/// A read of a task that nobody ends, for as long as a call may wait.
fn small_wait(attacker: &Attacker) -> String {
    format!("/v1/tasks/{}?wait_seconds=20", attacker.task)
}

struct Crowd<'a> {
    field: &'a Field,
    attackers: &'a [Attacker],
    count: usize,
}

impl Crowd<'_> {
    async fn run(&self, path: impl Fn(&Attacker) -> String) -> Result<Vec<Check>> {
        let next = |number: usize| -> Next {
            let attacker = &self.attackers[number % self.attackers.len()];
            let (path, key) = (path(attacker), attacker.minted.key.clone());
            Arc::new(move || (path.clone(), Some(key.clone())))
        };
        let keys: Vec<String> = self.attackers.iter().map(|attacker| attacker.minted.id.clone()).collect();
        Held { field: self.field, to: self.field.to, count: self.count, keys: &keys }.run(next).await
    }
}

/// The same request in so many places, until these keys are revoked.
pub async fn held_until_revoked(
    field: &Field,
    to: SocketAddr,
    count: usize,
    next: &Next,
    keys: &[String],
) -> Result<Vec<Check>> {
    Held { field, to, count, keys }.run(|_| Arc::clone(next)).await
}

struct Held<'a> {
    field: &'a Field,
    to: SocketAddr,
    count: usize,
    keys: &'a [String],
}

impl Held<'_> {
    async fn run(&self, next: impl Fn(usize) -> Next) -> Result<Vec<Check>> {
        let scale = &self.field.scale;
        let swarm = Arc::new(Swarm::new(self.to, PER_CONNECTION, &self.field.tally));
        let connections = 0..self.count.div_ceil(PER_CONNECTION);
        let from = connections.map(|number| (wire::attacker(number % scale.addresses), next(number)));
        let _connections = swarm.release(from);
        sleep(scale.hold).await;
        self.revoke(&swarm).await
    }

    /// Nothing more is asked, the keys are revoked, and what is open has to end.
    async fn revoke(&self, swarm: &Swarm) -> Result<Vec<Check>> {
        swarm.calm.store(true, Ordering::Relaxed);
        let held = swarm.open.load(Ordering::Relaxed);
        let began = Instant::now();
        let operator = Target { from: wire::OPERATOR, to: self.field.to, key: self.field.cast.admin.clone() };
        for id in self.keys {
            let answer = operator.call(Method::POST, &format!("/admin/keys/{id}/revoke"), Vec::new()).await?;
            ensure!(answer.is_success(), "the attacker's key could not be revoked: {}", answer.brief());
        }
        while swarm.open.load(Ordering::Relaxed) > 0 && began.elapsed() < CALL_MAX {
            sleep(POLL).await;
        }
        let (left, took) = (swarm.open.load(Ordering::Relaxed), began.elapsed());
        let what = format!(
            "what a revoked key has open ends within {} s ({held} were, {left} are after {:.1} s)",
            self.field.scale.answer_max.as_secs(),
            took.as_secs_f64()
        );
        Ok(vec![Check::new(held > 0 && left == 0 && took <= self.field.scale.answer_max, what)])
    }
}
