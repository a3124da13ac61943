//! The reference worker against a real server.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use tempfile::TempDir;
use waybill_kernel::Code;
use waybill_testkit::server;

use crate::world::{Engine, World, program, until};

const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// A process of the program that runs beside the test; ended with it.
pub struct Background {
    child: Child,
    folder: TempDir,
}

impl Background {
    pub fn start(args: &[&str], key: &str) -> Self {
        Self::start_in(args, &[("WAYBILL_KEY", key), ("WAYBILL_LOG", "info")])
    }

    pub fn start_in(args: &[&str], environment: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = File::create(folder.path().join("log")).unwrap();
        let mut command = Command::new(server::binary());
        command.args(args).envs(environment.iter().copied()).stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        Self { child: command.spawn().unwrap(), folder }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    pub async fn says(&self, words: &str) {
        until(&format!("the process to say {words:?}: {}", self.log()), || async { self.log().contains(words) }).await;
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn kill9(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status().unwrap();
        assert!(status.success());
    }

    /// Its exit code, once it has ended by itself.
    pub fn ended(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(POLL);
        }
        panic!("the process did not end: {}", self.log());
    }

    pub fn term(&mut self) -> Option<i32> {
        self.signal("TERM");
        self.ended()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server with an agent and a worker.
pub struct Office {
    pub world: World,
    pub agent: String,
    pub worker: String,
}

impl Office {
    pub async fn open(settings: &str) -> Self {
        Self::on(Engine::Sqlite, settings).await
    }

    pub async fn on(engine: Engine, settings: &str) -> Self {
        let world = World::with(engine, settings, &[]).await;
        let agent = world.key(json!({ "principal": "agent:alice" })).await;
        let worker = world.key(json!({ "principal": "worker:w1" })).await;
        Self { world, agent, worker }
    }

    pub fn worker(&self, args: &[&str]) -> Background {
        let server = self.world.url("");
        Background::start(&[&["worker", "run", "--server", &server], args].concat(), &self.worker)
    }

    pub async fn hand_over(&self, task: &Json) -> String {
        let reply = self.world.post(&self.agent, "/v1/tasks", task).await;
        reply.json()["task_id"].as_str().expect(&reply.text).to_owned()
    }

    pub async fn task(&self, id: &str) -> Json {
        self.world.get(&self.agent, &format!("/v1/tasks/{id}")).await.json()
    }

    /// The task when it has ended.
    pub async fn outcome(&self, id: &str) -> Json {
        for _ in 0..4 {
            let task = self.world.get(&self.agent, &format!("/v1/tasks/{id}?wait_seconds=20")).await.json();
            if task["result"].is_object() {
                return task;
            }
        }
        panic!("the task did not end: {}", self.task(id).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_does_every_kind_of_task_and_says_where_the_result_is() {
    let office = Office::open("").await;
    let echo = office.hand_over(&json!({"type": "echo", "payload": {"a": [1, "é"]}})).await;
    let sleep =
        office.hand_over(&json!({"type": "sleep_then_return", "payload": {"seconds": 0.01, "value": [7]}})).await;
    let exec =
        office.hand_over(&json!({"type": "exec", "payload": {"command": "cat", "args": ["-"], "stdin": "in"}})).await;
    let refused = office.hand_over(&json!({"type": "http_get", "payload": {"url": "http://169.254.169.254/"}})).await;
    let away = json!({"type": "http_get", "payload": {"url": "http://127.0.0.1:9/"}, "retry_backoff_seconds": 3600});
    let away = office.hand_over(&away).await;
    let odd = office.hand_over(&json!({"type": "sleep_then_return", "payload": {"seconds": "soon"}})).await;
    let healthz = office.world.url("/healthz");
    let get = office.hand_over(&json!({"type": "http_get", "payload": {"url": healthz}})).await;

    let port = office.world.address().rsplit_once(':').unwrap().1;
    let mut worker = office.worker(&[
        "--max-tasks",
        "7",
        "--concurrency",
        "3",
        "--exec",
        "cat=/bin/cat",
        "--allow-host",
        "127.0.0.1",
        "--allow-port",
        port,
        "--allow-port",
        "9",
    ]);
    assert_eq!(worker.ended(), Some(0), "{}", worker.log());

    for (id, expected) in [(&echo, json!({"a": [1, "é"]})), (&sleep, json!([7]))] {
        let task = office.outcome(id).await;
        assert_eq!((&task["status"], &task["result"]["result"]), (&json!("succeeded"), &expected));
        let pointer = json!([{"type": "task_result", "task_id": id}]);
        assert_eq!(task["result"]["artifacts"], pointer, "an obligation was left open");
    }
    assert_eq!(office.outcome(&exec).await["result"]["result"]["stdout"], "in");
    assert_eq!(office.outcome(&get).await["result"]["result"]["status"], 200);
    let refused = office.outcome(&refused).await;
    assert_eq!(
        (&refused["status"], &refused["result"]["error"]["code"]),
        (&json!("failed"), &json!("address_refused"))
    );
    assert_eq!(office.outcome(&odd).await["result"]["error"]["code"], "invalid_payload");
    // Only what failed on the way is tried again.
    let away = office.task(&away).await;
    assert_eq!((&away["status"], &away["attempt"]), (&json!("queued"), &json!(1)), "{away}");
}

/// A command that starts a process in each of the ways there are to get out of a program's reach (in the background, in a
/// session of its own, and there with a parent that is gone), names all three in a file, and goes on.
fn lingering(file: &Path) -> Json {
    let session = "setsid sh -c 'echo $$; exec sleep 1000' &";
    let script = format!(
        "{{ sleep 1000 & echo $!; {session} ( ( {session} ) & ) }} > {0}.part
         while [ $(wc -l < {0}.part) -lt 3 ]; do sleep 0.01; done; mv {0}.part {0}; sleep 1000",
        file.display()
    );
    json!({"type": "exec", "payload": {"command": "sh", "args": ["-c", script]}})
}

fn started(file: &Path) -> Vec<String> {
    std::fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect()
}

/// A renewal comes long after the test has given up.
const LONG_LEASE: [&str; 2] = ["--lease-ttl-seconds", "1800"];

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_ends_the_work_at_once_and_all_it_has_started() {
    let office = Office::open("").await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pids");
    let tasks = [lingering(&file), json!({"type": "sleep_then_return", "payload": {"seconds": 1000}})];
    let words = ["the program was ended with all it had started", "the work was stopped"];
    for (task, how) in tasks.iter().zip(words) {
        let task = office.hand_over(task).await;
        let mut worker = office.worker(&[&LONG_LEASE[..], &["--once", "--exec", "sh=/bin/sh"]].concat());
        worker.says("leased").await;
        if how == words[0] {
            until("the command to start", || async { file.exists() }).await;
        }
        let cancel = office.world.post(&office.agent, &format!("/v1/tasks/{task}/cancel"), &json!({})).await;
        assert_eq!(cancel.json()["ok"], true, "{}", cancel.text);
        worker.says(&format!("the task was canceled: {how}")).await;
        // It is said once it is so.
        assert!(started(&file).iter().all(|pid| is_gone(pid)), "{}", worker.log());
        assert_eq!(worker.ended(), Some(0), "{}", worker.log());
        assert!(!worker.log().contains("the lease is lost"), "{}", worker.log());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_program_outlives_a_worker_that_is_killed() {
    let office = Office::open("").await;
    let folder = tempfile::tempdir().unwrap();
    let files = ["a", "b"].map(|name| folder.path().join(name));
    for file in &files {
        office.hand_over(&lingering(file)).await;
    }
    let mut worker = office.worker(&["--concurrency", "2", "--exec", "sh=/bin/sh"]);
    until("the commands to start", || async { files.iter().all(|file| file.exists()) }).await;
    worker.kill9();
    let pids: Vec<_> = files.iter().flat_map(|file| started(file)).collect();
    assert_eq!(pids.len(), 6, "{pids:?}");
    until("the processes to be gone", || async { pids.iter().all(|pid| is_gone(pid)) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn its_key_is_nowhere_a_program_could_look() {
    let office = Office::open("").await;
    let folder = tempfile::tempdir().unwrap();
    let server = office.world.url("");
    let key = office.worker.as_str();
    let run = ["worker", "run", "--server", &server, "--exec", "sh=/bin/sh", "--once"];
    type Way<'a> = (&'a str, &'a [&'a str], &'a [(&'a str, &'a str)]);
    let ways: [Way<'_>; 3] = [
        ("environment", &[], &[("WAYBILL_KEY", key)]),
        ("alias", &[], &[("ASYNCGATE_API_KEY", key), ("WAYBILL_STORE", "postgres://waybill:secret@nowhere/db")]),
        ("flag", &["--key", key], &[]),
    ];
    for (way, args, environment) in ways {
        let file = folder.path().join(way);
        let task = office.hand_over(&lingering(&file)).await;
        let mut worker = Background::start_in(&[&run, args].concat(), environment);
        until("the command to start", || async { file.exists() }).await;
        let mut looked_at = 0;
        for pid in family(worker.pid()) {
            for shown in ["environ", "cmdline"] {
                // Whoever is not root is not even let in.
                let Ok(bytes) = std::fs::read(format!("/proc/{pid}/{shown}")) else { continue };
                let text = String::from_utf8_lossy(&bytes);
                assert!(!text.contains(key) && !text.contains("secret"), "{way}: {pid} shows it in {shown}: {text}");
                looked_at += 1;
            }
        }
        assert!(looked_at >= 2, "{way}: nobody was looked at");
        office.world.post(&office.agent, &format!("/v1/tasks/{task}/cancel"), &json!({})).await;
        assert_eq!(worker.ended(), Some(0), "{way}: {}", worker.log());
    }
}

/// A process and all beneath it.
fn family(pid: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| {
            let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            Some((pid, stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()?))
        })
        .collect();
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(parent) = family.get(next).copied() {
        family.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    family
}

fn is_gone(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    stat.map_or(true, |stat| stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('Z'))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_renewed_as_long_as_the_work_takes() {
    let office = Office::open("").await;
    let task =
        office.hand_over(&json!({"type": "sleep_then_return", "payload": {"seconds": 14, "value": "late"}})).await;
    // Two thirds of it may pass between two renewals: a machine that stands still for some seconds loses nothing.
    let mut worker = office.worker(&["--once", "--lease-ttl-seconds", "10"]);
    assert_eq!(worker.ended(), Some(0), "{}", worker.log());
    let task = office.outcome(&task).await;
    assert_eq!((&task["status"], &task["result"]["result"]), (&json!("succeeded"), &json!("late")), "{}", worker.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_lets_it_finish_and_a_second_one_or_the_end_of_patience_does_not() {
    let office = Office::open("").await;
    let short =
        office.hand_over(&json!({"type": "sleep_then_return", "payload": {"seconds": 1, "value": "done"}})).await;
    let mut worker = office.worker(&[]);
    worker.says("leased").await;
    assert_eq!(worker.term(), Some(0));
    assert_eq!(office.outcome(&short).await["result"]["result"], "done");

    for (drain, signals) in [("0", 1), ("1000", 2)] {
        let long = office.hand_over(&json!({"type": "sleep_then_return", "payload": {"seconds": 1000}})).await;
        let mut worker = office.worker(&["--drain-seconds", drain]);
        worker.says("leased").await;
        worker.signal("TERM");
        if signals == 2 {
            worker.says("finishing what is in hand").await;
            worker.signal("INT");
        }
        assert_eq!(worker.ended(), Some(0));
        assert!(worker.log().contains("left unfinished") && worker.log().contains(&long), "{}", worker.log());
        assert_eq!(office.task(&long).await["status"], "leased", "its lease is left to run out");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_the_server_does_not_take_is_a_failure_that_says_so() {
    let office = Office::open("[tasks]\nresult_bytes_max = 100\n").await;
    let task = office.hand_over(&json!({"type": "echo", "payload": "x".repeat(200)})).await;
    assert_eq!(office.worker(&["--once"]).ended(), Some(0));
    let task = office.outcome(&task).await;
    assert_eq!((&task["status"], &task["attempt"]), (&json!("failed"), &json!(0)), "{task}");
    assert_eq!(task["result"]["error"]["code"], "result_too_large");
    assert_eq!(task["result"]["error"]["result_bytes"], 202);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_command_says_how_it_ended_and_what_it_said_last() {
    let office = Office::open("").await;
    let script = "head -c 100000 /dev/zero | tr '\\0' e >&2; echo the end >&2; exit 7";
    let task = office.hand_over(&json!({"type": "exec", "payload": {"command": "sh", "args": ["-c", script]}})).await;
    assert_eq!(office.worker(&["--once", "--exec", "sh=/bin/sh"]).ended(), Some(0));
    let error = office.outcome(&task).await["result"]["error"].clone();
    assert_eq!((&error["code"], &error["exit_code"]), (&json!("command_failed"), &json!(7)), "{error}");
    assert_eq!(error["stderr_truncated"], true);
    assert!(error["stderr"].as_str().unwrap().ends_with("the end\n"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn its_key_may_be_where_clients_of_asyncgate_have_theirs() {
    let office = Office::open("").await;
    let task = office.hand_over(&json!({"type": "echo", "payload": 1})).await;
    let server = office.world.url("");
    // An empty one is none.
    let environment = [("WAYBILL_KEY", ""), ("ASYNCGATE_API_KEY", office.worker.as_str()), ("WAYBILL_LOG", "info")];
    let mut worker = Background::start_in(&["worker", "run", "--server", &server, "--once"], &environment);
    assert_eq!(worker.ended(), Some(0), "{}", worker.log());
    assert_eq!(office.outcome(&task).await["status"], "succeeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_work_is_refused_at_once_and_a_server_that_is_away_is_waited_for() {
    let office = Office::open("").await;
    let server = office.world.url("");
    let run = |args: &[&str]| program(&[&["worker", "run", "--server", &server], args].concat());
    run(&[]).must_be(Code::Unauthorized, "no key");
    run(&["--key", "aga_nonsense"]).must_be(Code::Unauthorized, "an unknown key");
    run(&["--key-file", "/nowhere"]).must_be_cured(Code::Unauthorized, "Name a file that you can read", "no key file");
    run(&["--key", &office.agent]).must_be(Code::Forbidden, "an agent's key");
    run(&["--key", &office.worker, "--worker-id", "somebody"]).must_be(Code::Forbidden, "another's name");
    run(&["--key", &office.worker, "--accept-type", "exec"]).must_be(Code::InvalidRequest, "exec without a program");
    run(&["--key", &office.worker, "--exec", "x=/nowhere"]).must_be(Code::InvalidRequest, "no program");
    let nowhere = program(&["worker", "run", "--server", "nowhere", "--key", &office.worker]);
    nowhere.must_be(Code::InvalidRequest, "no URL");

    let mut waiting = Background::start(&["worker", "run", "--server", "http://127.0.0.1:1"], &office.worker);
    waiting.says("nothing was leased; trying again").await;
    assert_eq!(waiting.term(), Some(0), "{}", waiting.log());
    assert!(!waiting.log().contains(&office.worker), "the key is in the log");
}
