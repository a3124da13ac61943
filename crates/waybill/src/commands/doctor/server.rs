//! Does the server that holds the folder answer, and is it ready?

use std::time::Duration;

use serde_json::Value as Json;

use super::{Check, Scene};
use crate::config::Config;
use crate::data;

const NAME: &str = "server";
/// A probe is a write; one that takes longer is an answer, too.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn examine(config: &Config, scene: &Scene) -> Check {
    let Some(pid) = &scene.holder else { return Check::skipped(NAME, "none runs on this data folder") };
    let Some(running) = data::running(&config.data).filter(|running| running.pid.to_string() == *pid) else {
        let found = format!("process {pid} holds the folder and does not say where it listens");
        let cure = "If it is a server that has just been started, or another command, ask again when it is done.";
        return Check::warning(NAME, found, cure);
    };
    let url = format!("http://{}/readyz", running.http);
    match ask(&url).await {
        Ok((200, body)) if body["checking"] == true => {
            Check::ok(NAME, format!("ready at {}; it is still checking its file", running.http))
        }
        Ok((200, _)) => Check::ok(NAME, format!("ready at {}", running.http)),
        Ok((_, body)) => {
            let why = body["message"].as_str().unwrap_or("it gives no reason");
            let cure = "See the other checks and the server's log.";
            Check::failed(NAME, format!("not ready at {}: {why}", running.http), cure)
        }
        Err(error) => {
            let found = format!("process {pid} does not answer at {}: {error}", running.http);
            Check::failed(NAME, found, "See the server's log; if it is stuck, stop it (SIGTERM) and start it again.")
        }
    }
}

async fn ask(url: &str) -> reqwest::Result<(u16, Json)> {
    let http = waybill_guard::client().no_proxy().timeout(PATIENCE).build()?;
    let response = http.get(url).send().await?;
    let status = response.status().as_u16();
    Ok((status, response.json().await.unwrap_or_default()))
}
