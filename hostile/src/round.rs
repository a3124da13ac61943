//! One attack from beginning to end: a server of its own, witnesses, quiet, the attack, quiet again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::time::sleep;
use waybill_bench::process::Server;

use crate::attacks::{Attack, Field};
use crate::caller::{CALL_MAX, Target};
use crate::marks::{Outcome, REST_MAX, RESTED_MAX_BYTES};
use crate::scale::Scale;
use crate::stage::Stage;
use crate::wire::INNOCENT;
use crate::witness::{Phase, Witnesses};

/// What an attack may take beyond its time, for its last look.
const OVERTIME: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(50);

pub async fn play(stage: &Stage, attack: Attack, scale: &Scale) -> Result<Outcome> {
    let (mut server, data) = stage.open(attack.name()).await?;
    let target = Target { from: INNOCENT, to: server.http, key: stage.cast.innocent.key.clone() };
    greet(&target).await?;
    let witnesses = Witnesses::call(&target, &stage.cast, scale, server.pid())?;
    sleep(scale.before).await;

    witnesses.enter(Phase::During);
    let sqs = server.sqs.context("no listener for SQS clients")?;
    let field = Field { to: server.http, sqs, scale: scale.clone(), cast: stage.cast.clone(), tally: Arc::default() };
    let assault = tokio::select! {
        checks = attack.run(&field) => checks.map_err(|error| format!("the attack itself failed: {error:#}")),
        () = witnesses.alarm() => Err("called off: the server was gone, or held too much".to_owned()),
        () = sleep(scale.hold + OVERTIME) => Err("the attack did not come to its end".to_owned()),
    };
    witnesses.enter(Phase::After);
    let over = Instant::now();
    let attackers = field.tally.to_string();

    let rested_after = rest(&mut server, &witnesses, over).await;
    sleep(scale.after.saturating_sub(over.elapsed())).await;
    let seen = witnesses.dismiss()?;
    let died = server.check_running().err().map(|error| last_words(&format!("{error:#}")));
    drop(server);
    std::fs::remove_dir_all(&data).with_context(|| format!("removing {}", data.display()))?;
    let (checks, broken_off) = match assault {
        Ok(checks) => (checks, None),
        Err(why) => (Vec::new(), Some(why)),
    };
    let answer_max = scale.answer_max;
    Ok(Outcome { name: attack.name(), seen, died, broken_off, rested_after, checks, answer_max, attackers })
}

/// The innocent's key is one that the server has seen.
async fn greet(target: &Target) -> Result<()> {
    let answer = target.call(http::Method::GET, "/v1/tasks?limit=1", Vec::new()).await?;
    anyhow::ensure!(answer.is_success(), "the innocent's first call: {}", answer.brief());
    Ok(())
}

/// How it ended, which the error begins with, and the last lines of its log.
fn last_words(error: &str) -> String {
    let how = error.split(": ").take(2).collect::<Vec<_>>().join(": ");
    let log: Vec<_> = error.lines().rev().filter(|line| !line.trim().is_empty()).take(2).collect();
    format!("{how}; its last words: {}", log.into_iter().rev().collect::<Vec<_>>().join(" | "))
}

/// Waits until the memory has been given back; how long that took.
async fn rest(server: &mut Server, witnesses: &Witnesses, over: Instant) -> Option<Duration> {
    // The sample that is looked at has to be one from after the end.
    sleep(POLL).await;
    while over.elapsed() < REST_MAX + CALL_MAX {
        if server.check_running().is_err() {
            return None;
        }
        if witnesses.resident() < RESTED_MAX_BYTES {
            return Some(over.elapsed()).filter(|elapsed| *elapsed <= REST_MAX);
        }
        sleep(POLL).await;
    }
    None
}
