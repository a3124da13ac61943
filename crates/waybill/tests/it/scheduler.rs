//! The scheduler against a real server: acceptance 10 and what leads up to it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::worker::{Background, Office};
use crate::world::{Engine, program, until};

const HOUR_S: i64 = 3600;

struct Plan {
    office: Office,
    key: String,
    folder: TempDir,
}

impl Plan {
    async fn open() -> Self {
        Self::on(Engine::Sqlite).await
    }

    async fn on(engine: Engine) -> Self {
        let office = Office::on(engine, "").await;
        let key = json!({ "principal": "service:scheduler", "roles": ["agent", "worker", "delegate"] });
        let key = office.world.key(key).await;
        Self { office, key, folder: tempfile::tempdir().unwrap() }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("scheduler.db")
    }

    fn start(&self) -> Background {
        let (server, file) = (self.office.world.url(""), self.file());
        let args = ["scheduler", "run", "--server", &server, "--file", file.to_str().unwrap()];
        Background::start(&args, &self.key)
    }

    /// What became of a control task.
    async fn ask(&self, kind: &str, payload: Json) -> Json {
        let task = json!({ "type": kind, "payload": payload, "requirements": { "capabilities": ["scheduler"] } });
        let id = self.office.hand_over(&task).await;
        self.office.outcome(&id).await
    }

    /// The same, asked for by somebody else.
    async fn ask_as(&self, principal: &str, kind: &str, payload: Json) -> Json {
        let world = &self.office.world;
        let key = world.key(json!({ "principal": principal, "roles": ["agent"] })).await;
        let task = json!({ "type": kind, "payload": payload, "requirements": { "capabilities": ["scheduler"] } });
        let id = world.post(&key, "/v1/tasks", &task).await.json()["task_id"].as_str().unwrap().to_owned();
        for _ in 0..4 {
            let task = world.get(&key, &format!("/v1/tasks/{id}?wait_seconds=20")).await.json();
            if task["result"].is_object() {
                return task;
            }
        }
        panic!("the task did not end: {id}");
    }

    async fn create(&self, changes: Json) -> String {
        let mut payload = json!({
            "name": "test", "mode": "interval", "interval_seconds": HOUR_S,
            "task_template": { "type": "tick", "payload_template": { "run_at": "{{run_at}}", "by": "{{schedule_id}}" } },
        });
        for (name, value) in changes.as_object().unwrap() {
            payload[name] = value.clone();
        }
        let task = self.ask("schedule.create", payload).await;
        assert_eq!(task["status"], "succeeded", "{task}");
        assert!(task["result"]["result"]["next_run_at"].as_str().unwrap().ends_with('Z'), "{task}");
        assert_eq!(task["result"]["artifacts"][0]["type"], "task_result", "an obligation was left open");
        task["result"]["result"]["schedule_id"].as_str().unwrap().to_owned()
    }

    /// The run times a schedule has fired for, each with the number of tasks made for it.
    async fn fired(&self, schedule_id: &str) -> BTreeMap<String, usize> {
        let mut fired = BTreeMap::new();
        let mut cursor = String::new();
        loop {
            let path = format!("/v1/tasks?type=tick&limit=200{cursor}");
            let page = self.office.world.get(&self.office.agent, &path).await.json();
            for task in page["tasks"].as_array().unwrap() {
                if task["payload"]["by"] == schedule_id {
                    *fired.entry(task["payload"]["run_at"].as_str().unwrap().to_owned()).or_default() += 1;
                }
            }
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return fired,
            }
        }
    }

    async fn until_fired(&self, schedule_id: &str, count: usize) {
        until(&format!("{count} firings"), || async { self.fired(schedule_id).await.len() >= count }).await;
    }

    /// The file, while no scheduler has it.
    fn edit(&self, sql: &str) {
        Connection::open(self.file()).unwrap().execute_batch(sql).unwrap();
    }
}

fn seconds(iso: &str) -> i64 {
    serde_json::from_value::<waybill_kernel::Time>(json!(iso)).unwrap().micros() / 1_000_000
}

fn copy(from: &Path, to: &Path) {
    for suffix in ["", "-wal"] {
        let (from, to) = (format!("{}{suffix}", from.display()), format!("{}{suffix}", to.display()));
        let _ = std::fs::remove_file(&to);
        if Path::new(&from).exists() {
            std::fs::copy(from, to).unwrap();
        }
    }
}

/// A server on each store.
macro_rules! on_both {
    ($($name:ident),+ $(,)?) => { $(
        mod $name {
            use super::{Engine, Plan};

            #[tokio::test(flavor = "multi_thread")]
            async fn sqlite() {
                super::$name(Plan::on(Engine::Sqlite).await).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn postgres() {
                super::$name(Plan::on(Engine::Postgres).await).await;
            }
        }
    )+ };
}

on_both! {
    a12_10_a_restart_fires_nothing_twice_and_leaves_nothing_out,
    a12_10_the_three_misfire_policies,
    a12_10_results_are_there_whenever_the_agent_asks,
}

async fn a12_10_a_restart_fires_nothing_twice_and_leaves_nothing_out(plan: Plan) {
    let mut scheduler = plan.start();
    let id = plan.create(json!({ "interval_seconds": 1, "misfire_policy": "catch_up_all" })).await;
    plan.until_fired(&id, 2).await;
    assert_eq!(scheduler.term(), Some(0), "{}", scheduler.log());
    let before = plan.folder.path().join("before.db");
    copy(&plan.file(), &before);

    let mut scheduler = plan.start();
    let count = plan.fired(&id).await.len();
    plan.until_fired(&id, count + 2).await;
    scheduler.kill9();
    // As if the crash had come after these firings and before their record.
    copy(&before, &plan.file());
    let count = plan.fired(&id).await.len();
    let mut scheduler = plan.start();
    plan.until_fired(&id, count + 2).await;
    assert_eq!(scheduler.term(), Some(0), "{}", scheduler.log());

    let fired = plan.fired(&id).await;
    assert!(fired.values().all(|tasks| *tasks == 1), "a run was fired twice: {fired:?}");
    let runs: Vec<i64> = fired.keys().map(|run_at| seconds(run_at)).collect();
    assert!(runs.windows(2).all(|pair| pair[1] == pair[0] + 1), "a run was left out: {fired:?}");
}

async fn a12_10_the_three_misfire_policies(plan: Plan) {
    let mut scheduler = plan.start();
    let mut schedules = Vec::new();
    for (policy, expected) in [(Some("skip"), 1), (None, 2), (Some("catch_up_one"), 2), (Some("catch_up_all"), 4)] {
        let changes = policy.map_or_else(|| json!({}), |policy| json!({ "misfire_policy": policy }));
        schedules.push((plan.create(changes).await, policy, expected));
    }
    assert_eq!(scheduler.term(), Some(0));
    // Four hours and a half pass while nobody runs them.
    let late = 4 * HOUR_S + HOUR_S / 2;
    plan.edit(&format!(
        "UPDATE schedules SET anchor_s = anchor_s - {late}, handled_until_s = handled_until_s - {late},
                              next_run_s = next_run_s - {late}"
    ));
    let mut scheduler = plan.start();
    for (id, policy, expected) in &schedules {
        plan.until_fired(id, *expected).await;
        let status = plan.ask("schedule.status", json!({ "schedule_id": id })).await;
        let status = &status["result"]["result"];
        assert_eq!((&status["enabled"], &status["last_status"]), (&json!(true), &json!("fired")), "{status}");
        let next = seconds(status["next_run_at"].as_str().unwrap());
        assert_eq!(next - seconds(status["last_run_at"].as_str().unwrap()), HOUR_S, "{status}");
        let fired = plan.fired(id).await;
        assert_eq!(fired.len(), *expected, "{policy:?}: {fired:?}");
        let runs: Vec<i64> = fired.keys().map(|run_at| seconds(run_at)).collect();
        assert!(runs.windows(2).all(|pair| pair[1] == pair[0] + HOUR_S), "{policy:?}: not the latest ones: {fired:?}");
        assert_eq!(*runs.last().unwrap(), next - HOUR_S, "{policy:?}: the run that is due was not fired");
    }
    assert_eq!(scheduler.term(), Some(0));
    let mut scheduler = plan.start();
    let status = plan.ask("schedule.status", json!({ "schedule_id": schedules[0].0 })).await;
    assert_eq!(status["status"], "succeeded");
    for (id, policy, expected) in &schedules {
        assert_eq!(plan.fired(id).await.len(), *expected, "{policy:?}: fired again after a restart");
    }
    assert_eq!(scheduler.term(), Some(0));
}

async fn a12_10_results_are_there_whenever_the_agent_asks(plan: Plan) {
    let mut scheduler = plan.start();
    let template = json!({ "type": "echo", "payload_template": { "by": "{{schedule_id}}" } });
    let created = plan.create(json!({ "interval_seconds": 1, "task_template": template })).await;
    let mut worker = plan.office.worker(&["--once", "--accept-type", "echo"]);
    assert_eq!(worker.ended(), Some(0), "{}", worker.log());
    assert_eq!(plan.ask("schedule.delete", json!({ "schedule_id": created })).await["result"]["result"]["ok"], true);
    assert_eq!(scheduler.term(), Some(0));

    // A schedule has the id of the task that made it, so its maker finds both long after.
    let made = plan.office.task(&created).await;
    assert_eq!(made["result"]["result"]["schedule_id"], json!(created), "{made}");
    let done = plan.office.world.get(&plan.office.agent, "/v1/tasks?type=echo&status=succeeded").await.json();
    let done = &done["tasks"][0];
    let path = format!("/v1/tasks/{}", done["task_id"].as_str().unwrap());
    let task = plan.office.world.get(&plan.office.agent, &path).await.json();
    assert_eq!(task["result"]["result"], json!({ "by": created }), "{task}");
    assert_eq!(task["created_by"], made["created_by"], "what a schedule fires belongs to its owner");
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_are_paused_resumed_and_deleted() {
    let plan = Plan::open().await;
    let mut scheduler = plan.start();
    let id = plan.create(json!({ "interval_seconds": 1, "misfire_policy": "catch_up_all" })).await;
    plan.until_fired(&id, 1).await;
    let named = json!({ "schedule_id": id });
    for _ in 0..2 {
        assert_eq!(plan.ask("schedule.pause", named.clone()).await["result"]["result"], json!({ "ok": true }));
    }
    let status = plan.ask("schedule.status", named.clone()).await["result"]["result"].clone();
    assert_eq!((&status["enabled"], &status["next_run_at"]), (&json!(false), &Json::Null), "{status}");
    let last = seconds(status["last_run_at"].as_str().unwrap());
    // A second of the schedule passes, and then some.
    until("a later second", || async { plan.now_s().await > last + 3 }).await;
    let paused = plan.fired(&id).await;
    let resumed = plan.ask("schedule.resume", named.clone()).await["result"]["result"].clone();
    let next = seconds(resumed["next_run_at"].as_str().unwrap());
    assert!(next > last + 3, "what passed while it was paused is not made up for: {resumed}");
    plan.until_fired(&id, paused.len() + 1).await;
    let after = plan.fired(&id).await;
    assert!(after.keys().all(|run_at| paused.contains_key(run_at) || seconds(run_at) >= next), "{after:?}");

    for kind in ["schedule.status", "schedule.pause", "schedule.resume", "schedule.delete"] {
        let refused = plan.ask_as("agent:bob", kind, named.clone()).await;
        assert_eq!(refused["result"]["error"]["code"], "unknown_schedule", "{kind} of somebody else's: {refused}");
    }
    assert_eq!(plan.ask("schedule.status", named.clone()).await["result"]["result"]["enabled"], true);

    assert_eq!(plan.ask("schedule.delete", named.clone()).await["result"]["result"], json!({ "ok": true }));
    for kind in ["schedule.status", "schedule.pause", "schedule.resume", "schedule.delete"] {
        let task = plan.ask(kind, named.clone()).await;
        assert_eq!((&task["status"], &task["attempt"]), (&json!("failed"), &json!(0)), "{kind}: {task}");
        assert_eq!(task["result"]["error"]["code"], "unknown_schedule", "{kind}");
    }
    assert_eq!(scheduler.term(), Some(0), "{}", scheduler.log());
}

impl Plan {
    /// The server's clock, as a task's time of creation shows it.
    async fn now_s(&self) -> i64 {
        let id = self.office.hand_over(&json!({ "type": "clock" })).await;
        seconds(self.office.task(&id).await["created_at"].as_str().unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_never_fire_is_refused_for_good() {
    let plan = Plan::open().await;
    let _scheduler = plan.start();
    let task = json!({ "type": "tick" });
    for (payload, word) in [
        (json!({"name": "n", "mode": "interval", "interval_seconds": 0, "task_template": task}), "interval_seconds"),
        (json!({"name": "n", "mode": "cron", "cron_expr": "0 0 30 2 *", "task_template": task}), "never"),
        (
            json!({"name": "n", "mode": "cron", "cron_expr": "* * * * *", "timezone": "Mars/X", "task_template": task}),
            "Mars",
        ),
        (
            json!({"name": "n", "mode": "interval", "interval_seconds": 9,
                "task_template": {"type": "tick", "payload_template": "{{who}}"}}),
            "{{who}}",
        ),
        (json!("nonsense"), "not understood"),
    ] {
        let refused = plan.ask("schedule.create", payload.clone()).await;
        assert_eq!((&refused["status"], &refused["attempt"]), (&json!("failed"), &json!(0)), "{payload}: {refused}");
        let message = refused["result"]["error"]["message"].as_str().unwrap();
        assert!(message.contains(word), "{payload}: {message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_the_server_refuses_holds_up_no_other() {
    let plan = Plan::open().await;
    let mut scheduler = plan.start();
    // Each word is as long as a word may be, and all of them are more than a receipt may hold.
    let words = vec!["\u{1F600}".repeat(128); 64];
    let template = json!({ "type": "tick", "requirements": { "capabilities": words, "tags": words } });
    let refused = plan.create(json!({ "interval_seconds": 1, "task_template": template })).await;
    let other = plan.create(json!({ "interval_seconds": 1 })).await;
    plan.until_fired(&other, 2).await;
    let status = plan.ask("schedule.status", json!({ "schedule_id": refused })).await["result"]["result"].clone();
    assert!(status["last_status"].as_str().unwrap().starts_with("refused: receipt_too_large"), "{status}");
    let (last, next) = (&status["last_run_at"], &status["next_run_at"]);
    assert_eq!(seconds(next.as_str().unwrap()), seconds(last.as_str().unwrap()) + 1, "{status}");
    assert_eq!(scheduler.term(), Some(0), "{}", scheduler.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn those_that_are_put_off_hold_up_no_other_and_lose_no_run() {
    let plan = Plan::open().await;
    let mut scheduler = plan.start();
    let every_second = json!({ "interval_seconds": 1, "misfire_policy": "catch_up_all" });
    let barred = plan.create(every_second.clone()).await;
    let other = plan.create(every_second).await;
    assert_eq!(scheduler.term(), Some(0), "{}", scheduler.log());
    // The server knows of no schedules of bob. They are more than are looked at in a round, and have waited longer.
    plan.edit(&format!(
        "UPDATE schedules SET owner = 'agent:bob' WHERE schedule_id = '{barred}';
         WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 150)
         INSERT INTO schedules (schedule_id, definition, enabled, anchor_s, handled_until_s, next_run_s, owner)
             SELECT 'nobodys-' || i, definition, 1, anchor_s - {HOUR_S}, handled_until_s - {HOUR_S},
                    next_run_s - {HOUR_S}, 'agent:bob'
             FROM schedules, n WHERE schedule_id = '{other}';"
    ));
    let count = plan.fired(&other).await.len();
    let mut scheduler = plan.start();
    plan.until_fired(&other, count + 2).await;
    scheduler.says(&barred).await;
    assert_eq!(scheduler.term(), Some(0), "{}", scheduler.log());

    // It is let through, and its time has come.
    let count = plan.fired(&barred).await.len();
    plan.edit(&format!(
        "UPDATE schedules SET owner = 'agent:alice', put_off_until_s = next_run_s
         WHERE schedule_id = '{barred}' AND put_off_until_s > next_run_s"
    ));
    let mut scheduler = plan.start();
    plan.until_fired(&barred, count + 3).await;
    assert_eq!(scheduler.term(), Some(0), "{}", scheduler.log());
    let fired = plan.fired(&barred).await;
    let runs: Vec<i64> = fired.keys().map(|run_at| seconds(run_at)).collect();
    assert!(runs.windows(2).all(|pair| pair[1] == pair[0] + 1), "a run was left out: {fired:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_the_servers_word_and_the_file_loses_no_schedule_and_makes_none_up() {
    let plan = Plan::open().await;
    let payload = json!({
        "name": "n", "mode": "interval", "interval_seconds": 1,
        "task_template": {"type": "tick", "payload_template": {"run_at": "{{run_at}}", "by": "{{schedule_id}}"}},
    });
    let mut promised = Vec::new();
    for completed in [true, false] {
        let task = json!({"type": "schedule.create", "payload": payload});
        let id = plan.office.hand_over(&task).await;
        let claim = plan.office.world.post(&plan.key, "/v1/leases/claim", &json!({})).await.json();
        let lease_id = claim["tasks"][0]["lease_id"].as_str().unwrap().to_owned();
        let result = json!({ "schedule_id": id, "next_run_at": "2026-01-01T00:00:00Z" });
        if completed {
            let artifacts = json!([{ "type": "task_result", "task_id": id }]);
            let body = json!({ "lease_id": lease_id, "result": result, "artifacts": artifacts });
            let reply = plan.office.world.post(&plan.key, &format!("/v1/tasks/{id}/complete"), &body).await;
            assert_eq!(reply.status, 200, "{}", reply.text);
        } else {
            plan.office.world.post(&plan.office.agent, &format!("/v1/tasks/{id}/cancel"), &json!({})).await;
        }
        promised.push((id, lease_id, result));
    }
    // A file with its tables, as any start makes it.
    assert_eq!(plan.start_and_stop().await, Some(0));
    for (id, lease_id, result) in &promised {
        let now = plan.now_s().await;
        let change = json!({ "create": {
            "schedule_id": id, "definition": payload, "enabled": true, "anchor_s": now, "handled_until_s": now,
            "next_run_s": now + 1, "last_run_s": null, "last_status": null,
        }});
        plan.edit(&format!(
            "INSERT INTO changes (task_id, lease_id, worker_id, change, result)
             VALUES ('{id}', '{lease_id}', NULL, '{change}', '{result}')"
        ));
    }
    let mut scheduler = plan.start();
    plan.until_fired(&promised[0].0, 1).await;
    scheduler.says("the server did not take the change").await;
    let unknown = plan.ask("schedule.status", json!({ "schedule_id": promised[1].0 })).await;
    assert_eq!(unknown["result"]["error"]["code"], "unknown_schedule", "a canceled task made a schedule: {unknown}");
    assert_eq!(scheduler.term(), Some(0));
    let open: i64 =
        Connection::open(plan.file()).unwrap().query_row("SELECT count(*) FROM changes", [], |row| row.get(0)).unwrap();
    assert_eq!(open, 0, "a promise was left open");
}

impl Plan {
    async fn start_and_stop(&self) -> Option<i32> {
        let mut scheduler = self.start();
        scheduler.says("keeping schedules").await;
        scheduler.term()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_that_its_scheduler_may_not_fire_is_refused_when_it_is_created() {
    let mut plan = Plan::open().await;
    let payload = json!({
        "name": "n", "mode": "interval", "interval_seconds": 1,
        "task_template": { "type": "tick", "payload_template": { "by": "{{schedule_id}}" } },
    });
    let keys = [
        json!({ "principal": "service:scheduler", "roles": ["agent", "worker"] }),
        json!({ "principal": "service:scheduler", "roles": ["worker", "delegate"] }),
        json!({
            "principal": "service:scheduler", "roles": ["agent", "worker", "delegate"],
            "scopes": ["tasks:lease", "tasks:read"],
        }),
    ];
    for (number, key) in keys.into_iter().enumerate() {
        plan.key = plan.office.world.key(key).await;
        let mut scheduler = plan.start();
        let refused = plan.ask("schedule.create", payload.clone()).await;
        let error = &refused["result"]["error"];
        assert_eq!((&refused["status"], &error["code"]), (&json!("failed"), &json!("may_not_fire")), "{refused}");
        assert!(error["message"].as_str().unwrap().contains("delegate"), "{error}");
        if number == 0 {
            // Its own tasks it may create.
            let own = plan.ask_as("service:scheduler", "schedule.create", payload.clone()).await;
            assert_eq!(own["status"], "succeeded", "{own}");
        }
        assert_eq!(scheduler.term(), Some(0), "{}", scheduler.log());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn its_key_may_be_where_clients_of_asyncgate_have_theirs() {
    let plan = Plan::open().await;
    let (server, file) = (plan.office.world.url(""), plan.file());
    let args = ["scheduler", "run", "--server", &server, "--file", file.to_str().unwrap()];
    let environment = [("WAYBILL_KEY", ""), ("ASYNCGATE_API_KEY", plan.key.as_str()), ("WAYBILL_LOG", "info")];
    let _scheduler = Background::start_in(&args, &environment);
    plan.create(json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_schedulers_do_not_share_a_file() {
    let plan = Plan::open().await;
    let scheduler = plan.start();
    scheduler.says("keeping schedules").await;
    let (server, file) = (plan.office.world.url(""), plan.file());
    let args = ["scheduler", "run", "--server", &server, "--file", file.to_str().unwrap(), "--key", &plan.key];
    let cure = "Stop that scheduler, or choose another file with --file.";
    program(&args).must_be_cured(waybill_kernel::Code::DataFolderLocked, cure, "a file in use");
}
