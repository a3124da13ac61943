//! Hooks as they are run: by a keeper, with real programs.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Value as Json, json};
use tokio_util::sync::CancellationToken;
use waybill_daemon::config;
use waybill_daemon::events::{EventKind, Events, Listener, Subscription};
use waybill_daemon::folder::Folder;
use waybill_daemon::hooks::{Config, Hooks, Outward, Reply};
use waybill_kernel::entropy::OsEntropy;
use waybill_kernel::{Clock, Code, Result};

#[derive(Clone, Default)]
struct Answers(Arc<Mutex<Vec<Reply>>>);

impl Outward for Answers {
    fn reply(&self, reply: Reply) -> BoxFuture<'static, Result<()>> {
        self.0.lock().unwrap().push(reply);
        Box::pin(async { Ok(()) })
    }
}

struct Stage {
    home: tempfile::TempDir,
    hooks: Hooks,
    events: Events,
    clock: Arc<Clock>,
    answers: Answers,
    ended: Subscription,
    stop: CancellationToken,
}

impl Stage {
    /// With these entries of hooks.toml, and scripts by name.
    fn new(settings: &str, scripts: &[(&str, &str)]) -> Self {
        Self::with(settings, scripts, false)
    }

    fn with(settings: &str, scripts: &[(&str, &str)], off: bool) -> Self {
        Self::of(settings, scripts, off, config::Hooks::default())
    }

    fn of(settings: &str, scripts: &[(&str, &str)], off: bool, times: config::Hooks) -> Self {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::open(home.path(), "acme").unwrap();
        folder.write("hooks.toml", settings.as_bytes()).unwrap();
        for (name, script) in scripts {
            let path = folder.path().join("hooks").join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        }
        let clock = Arc::new(Clock::system());
        let events = Events::new(clock.now(), 1_000);
        let config = Config {
            mesh: "acme".to_owned(),
            socket: folder.path().join("sock"),
            own: env!("CARGO_BIN_EXE_hook-keeper").into(),
            settings: times,
            off,
            folder,
        };
        let hooks = Hooks::open(config, Arc::clone(&clock), Arc::new(OsEntropy), events.clone()).unwrap();
        events.add_listener(Arc::new(hooks.clone()) as Arc<dyn Listener>);
        let (answers, stop, ended) = (Answers::default(), CancellationToken::new(), events.subscribe(None));
        let (runs, outward, token) = (hooks.clone(), Arc::new(answers.clone()), stop.clone());
        tokio::spawn(async move { runs.run(outward, token).await });
        Self { home, hooks, events, clock, answers, ended, stop }
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.home.path().join("daemon/acme").join(name)
    }

    fn message(&self, more: Json) {
        let mut data = json!({
            "client_message_id": "m-1", "sender_pubkey": "ab".repeat(32), "sender_name": "bob", "body": "hello",
        });
        for (name, value) in more.as_object().unwrap() {
            data[name] = value.clone();
        }
        self.events.publish(EventKind::Message, self.clock.now(), data);
    }

    /// The next hook that has ended.
    async fn executed(&mut self) -> Json {
        loop {
            let told = self.ended.next().await.unwrap();
            if told.event.kind == EventKind::HookExecuted {
                return told.event.data.clone();
            }
        }
    }

    fn audit(&self) -> Vec<Json> {
        let text = std::fs::read_to_string(self.file("hooks-audit.jsonl")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn wrote(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Is a process of this number alive, and not only its unread end?
fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

#[tokio::test]
async fn a_hook_reads_the_event_and_has_the_environment_that_is_promised_and_no_other() {
    let mut stage = Stage::new(
        "[hooks.on-dm]\nenabled = true\nredact_payload = [\"data.meta.token\"]\n",
        &[("on-dm", "cat > ../seen; env > ../env")],
    );
    stage.message(json!({"meta": {"token": "s3cret"}}));
    assert_eq!(stage.executed().await["result"], "succeeded");
    let seen: Json = serde_json::from_str(&wrote(&stage.file("seen"))).unwrap();
    assert_eq!((&seen["event"], &seen["data"]["body"]), (&json!("message"), &json!("hello")));
    assert_eq!(seen["data"]["meta"]["token"], "[redacted]");
    let env = wrote(&stage.file("env"));
    let mut names: Vec<&str> = env.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    names.retain(|name| !["PWD", "OLDPWD", "SHLVL", "_"].contains(name));
    names.sort_unstable();
    assert_eq!(names, ["PATH", "WAYBILL_EVENT_ID", "WAYBILL_HOOK", "WAYBILL_MESH", "WAYBILL_SOCKET"]);
    assert!(env.contains("PATH=/usr/bin:/bin\n"), "{env}");
    let line = &stage.audit()[0];
    assert_eq!(
        (&line["hook"], &line["result"], &line["message_id"]),
        (&json!("on-dm"), &json!("succeeded"), &json!("m-1"))
    );
}

#[tokio::test]
async fn what_has_no_entry_or_is_off_does_not_run() {
    let on_dm = ("on-dm", "touch ../ran");
    let mut stage = Stage::new("[hooks.on-message]\nenabled = true\n[hooks.on-dm]\n", &[on_dm, ("on-message", "true")]);
    stage.message(json!({}));
    assert_eq!(stage.executed().await["hook"], "on-message");
    assert!(!stage.file("ran").exists());
    let off = Stage::with(
        "[hooks.on-dm]\nenabled = true\n[hooks.pre-send]\nenabled = true\n",
        &[on_dm, ("pre-send", "exit 1")],
        true,
    );
    off.message(json!({}));
    assert_eq!(off.hooks.pre_send(json!({"to": "bob"})).await.unwrap(), json!({"to": "bob"}));
    assert!(!off.file("ran").exists() && off.audit().is_empty());
}

#[tokio::test]
async fn a_hook_that_hangs_is_asked_to_end_and_one_that_does_not_listen_is_ended() {
    let mut stage = Stage::new(
        "[hooks.on-dm]\nenabled = true\ntimeout_s = 1\n[hooks.on-mention]\nenabled = true\ntimeout_s = 1\n",
        &[
            ("on-dm", "trap 'echo asked > ../asked; exit 0' TERM; while :; do sleep 0.05; done"),
            ("on-mention", "echo $$ > ../pid; trap '' TERM; while :; do sleep 0.05; done"),
        ],
    );
    stage.message(json!({"mentioned": true}));
    let (first, second) = (stage.executed().await, stage.executed().await);
    assert_eq!((&first["hook"], &first["result"]), (&json!("on-dm"), &json!("timed_out")));
    assert_eq!((&second["hook"], &second["result"]), (&json!("on-mention"), &json!("timed_out")));
    assert_eq!(wrote(&stage.file("asked")), "asked\n");
    assert!(!lives(&wrote(&stage.file("pid"))));
}

#[tokio::test]
async fn grace_life_and_audit_are_as_the_settings_say() {
    // Without grace a hook that would obey is ended before it can.
    let times = config::Hooks { grace_ms: 0, capability_ms: 1, audit_bytes_max: 1 };
    let mut stage = Stage::of(
        "[hooks.on-dm]\nenabled = true\ntimeout_s = 1\nscopes = [\"reply:event\"]\n",
        &[(
            "on-dm",
            "echo $WAYBILL_HOOK_TOKEN > ../token; trap 'sleep 1; touch ../asked; exit 0' TERM; while :; do sleep 0.05; done",
        )],
        false,
        times,
    );
    for _ in 0..2 {
        stage.message(json!({}));
        while wrote(&stage.file("token")).is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let (token, later) = (wrote(&stage.file("token")), stage.clock.now().after(Duration::from_millis(1)));
        assert!(stage.hooks.capabilities().grant(token.trim(), later).is_err(), "its time is over");
        assert_eq!(stage.executed().await["result"], "timed_out");
    }
    assert!(!stage.file("asked").exists());
    assert_eq!(stage.audit().len(), 1, "the line before it was put aside");
    assert!(stage.file("hooks-audit.jsonl.1").exists());
}

#[tokio::test]
async fn what_a_hook_has_started_ends_with_it_even_in_a_session_of_its_own() {
    let mut stage = Stage::new(
        "[hooks.on-dm]\nenabled = true\n",
        &[(
            "on-dm",
            "setsid sh -c 'echo $$ > ../child; exec sleep 600' & (sleep 600 & echo $! > ../other) & \
                     while [ ! -s ../child ] || [ ! -s ../other ]; do sleep 0.05; done",
        )],
    );
    stage.message(json!({}));
    assert_eq!(stage.executed().await["result"], "succeeded");
    for file in ["child", "other"] {
        let pid = wrote(&stage.file(file));
        assert!(!pid.is_empty() && !lives(&pid), "{file} {pid} goes on");
    }
}

#[tokio::test]
async fn a_hook_that_floods_keeps_its_place_and_no_more_than_it_may_say() {
    let mut stage = Stage::new(
        "[hooks.on-dm]\nenabled = true\noutput_size_limit = 1000\nallow_reply = true\n",
        &[("on-dm", "head -c 3000000 /dev/zero | tr '\\0' a; head -c 3000000 /dev/zero | tr '\\0' b >&2")],
    );
    stage.message(json!({}));
    assert_eq!(stage.executed().await["result"], "succeeded");
    let line = &stage.audit()[0];
    assert_eq!((&line["stdout_bytes"], &line["stdout_cut"]), (&json!(1000), &json!(true)));
    assert!(stage.answers.0.lock().unwrap().is_empty(), "half an answer is none");
}

#[tokio::test]
async fn a_hook_that_forks_without_end_is_ended() {
    let bomb =
        "i=0; while [ $i -lt 60 ]; do (trap '' TERM; setsid sleep 600) & i=$((i+1)); done; echo up > ../up; wait";
    let mut stage = Stage::new("[hooks.on-dm]\nenabled = true\ntimeout_s = 2\n", &[("on-dm", bomb)]);
    stage.message(json!({}));
    assert_eq!(stage.executed().await["result"], "timed_out");
    assert_eq!(wrote(&stage.file("up")), "up\n");
    // Whoever was left would have the hooks folder as its working folder.
    let left = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|entry| std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == stage.file("hooks")));
    assert_eq!(left.count(), 0);
}

#[tokio::test]
async fn an_answer_goes_to_whoever_asked_once() {
    let mut stage =
        Stage::new("[hooks.on-message]\nenabled = true\nallow_reply = true\n", &[("on-message", "echo pong")]);
    stage.message(json!({}));
    stage.executed().await;
    stage.message(json!({"topic": "builds"}));
    stage.executed().await;
    // The second answer is on its way once its hook has ended.
    while stage.answers.0.lock().unwrap().len() < 2 {
        tokio::task::yield_now().await;
    }
    let answers = stage.answers.0.lock().unwrap();
    assert_eq!((answers[0].text.as_str(), &answers[0].topic), ("pong", &None));
    assert_eq!((&answers[0].to, &answers[0].reply_to_id), (&"ab".repeat(32), &"m-1".to_owned()));
    assert_eq!(answers[1].topic.as_deref(), Some("builds"));
    assert_eq!(answers[0].client_message_id, answers[1].client_message_id, "one id for one message");
}

#[tokio::test]
async fn a_capability_lives_while_its_hook_runs() {
    let mut stage = Stage::new(
        "[hooks.on-dm]\nenabled = true\nscopes = [\"reply:event\"]\n",
        &[("on-dm", "echo $WAYBILL_HOOK_TOKEN > ../token; while [ ! -e ../go ]; do sleep 0.05; done")],
    );
    stage.message(json!({}));
    while wrote(&stage.file("token")).is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let token = wrote(&stage.file("token")).trim().to_owned();
    let grant = stage.hooks.capabilities().grant(&token, stage.clock.now()).unwrap();
    assert!(grant.permits("/v1/send", &json!({"to": "bob", "replyToId": "m-1"})).is_ok());
    assert_eq!(grant.permits("/v1/inbox", &json!({})).unwrap_err().code(), Code::Forbidden);
    std::fs::write(stage.file("go"), "").unwrap();
    stage.executed().await;
    assert!(stage.hooks.capabilities().grant(&token, stage.clock.now()).is_err());
}

#[tokio::test]
async fn pre_send_lets_pass_changes_or_refuses() {
    let request = json!({"to": "bob", "message": "hello"});
    let script = "case \"$(cat)\" in *secret*) echo 'no secrets' >&2; exit 3;; *shout*) echo '{\"to\":\"bob\",\"message\":\"HI\"}';; \
                  *odd*) echo nonsense;; *hang*) sleep 600;; esac";
    let stage = Stage::new("[hooks.pre-send]\nenabled = true\ntimeout_s = 1\n", &[("pre-send", script)]);
    assert_eq!(stage.hooks.pre_send(request.clone()).await.unwrap(), request);
    let shout = json!({"to": "bob", "message": "shout"});
    assert_eq!(stage.hooks.pre_send(shout).await.unwrap()["message"], "HI");
    for (message, why) in [("secret", "no secrets"), ("odd", "JSON"), ("hang", "in time")] {
        let error = stage.hooks.pre_send(json!({"to": "bob", "message": message})).await.unwrap_err();
        assert_eq!(error.code(), Code::HookRefused);
        assert!(error.message().contains(why), "{error}");
    }
    std::fs::set_permissions(stage.file("hooks/pre-send"), PermissionsExt::from_mode(0o722)).unwrap();
    let error = stage.hooks.pre_send(request.clone()).await.unwrap_err();
    assert!(error.message().contains("may be written by others"), "{error}");
    std::fs::remove_file(stage.file("hooks/pre-send")).unwrap();
    assert_eq!(stage.hooks.pre_send(request).await.unwrap_err().code(), Code::HookRefused);
}

#[tokio::test]
async fn a_fence_is_kept_where_the_system_allows_it_and_noted_where_not() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let reach =
        format!("exec 3<>/dev/tcp/127.0.0.1/{} && echo reached > ../reached", listener.local_addr().unwrap().port());
    let script = format!("/bin/bash -c '{reach}'; true");
    let settings = "[hooks.on-message]\nenabled = true\n[hooks.on-dm]\nenabled = true\nnetwork_policy = \"deny\"\n";
    let mut stage = Stage::new(
        settings,
        &[("on-message", &script), ("on-dm", &script.replace("reached\"", "x").replace("../reached", "../denied"))],
    );
    stage.message(json!({}));
    stage.executed().await;
    stage.executed().await;
    assert_eq!(wrote(&stage.file("reached")), "reached\n", "the same hook without a fence does reach it");
    let audit = stage.audit();
    let fenced = audit.iter().find(|line| line["hook"] == "on-dm").unwrap();
    assert_eq!(fenced["fence_enforced"] == true, !stage.file("denied").exists(), "{fenced}");
}

#[tokio::test]
async fn a_read_only_fence_leaves_nothing_behind() {
    let mut stage = Stage::new(
        "[hooks.on-dm]\nenabled = true\nfs_policy = \"read_only\"\n[hooks.on-message]\nenabled = true\nsandbox = \"strict\"\n",
        &[("on-dm", "touch ../written"), ("on-message", "touch ../strict")],
    );
    stage.message(json!({}));
    stage.executed().await;
    stage.executed().await;
    for (hook, file) in [("on-dm", "written"), ("on-message", "strict")] {
        let line = stage.audit().into_iter().find(|line| line["hook"] == hook).unwrap();
        assert_eq!(line["fence_enforced"] == true, !stage.file(file).exists(), "{line}");
    }
}

#[tokio::test]
async fn a_reload_takes_what_can_be_used() {
    let mut stage = Stage::new("", &[("on-dm", "true")]);
    stage.message(json!({}));
    std::fs::write(stage.file("hooks.toml"), "[hooks.on-dm]\nenabled = true\n").unwrap();
    stage.hooks.reload().unwrap();
    std::fs::write(stage.file("hooks.toml"), "[hooks.on-dm]\nenable = true\n").unwrap();
    assert_eq!(stage.hooks.reload().unwrap_err().code(), Code::ConfigInvalid);
    stage.message(json!({}));
    assert_eq!(stage.executed().await["hook"], "on-dm");
}
