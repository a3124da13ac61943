//! `exec`: a program the operator has named, with the arguments of the task. No shell, no environment of ours, and the
//! whole process group ends with the task.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::{Value as Json, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;
use waybill_client::Lease;
use waybill_kernel::{Error, Result};

use super::handlers::{payload, text};
use super::held::Refusal;

const ARGS_MAX: usize = 1_000;
/// What a program may need to find its way; everything else, keys above all, stays here.
const ENVIRONMENT: [&str; 7] = ["PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR"];
const READ_BYTES: usize = 8 << 10;
/// Of each stream of a program that failed, as JSON: what it said last tells why, and a failure must fit into its receipt.
const LAST_WORDS_BYTES_MAX: usize = 8 << 10;

pub struct Exec {
    programs: BTreeMap<String, PathBuf>,
    timeout: Duration,
    output_bytes_max: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    command: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    stdin: String,
}

/// Kills the group unless the program has ended. A group outlives its leader, and a background process would hold the pipes.
struct Group(Option<Pid>);

impl Group {
    fn kill(&mut self) {
        if let Some(group) = self.0.take() {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

struct Output {
    /// The first of it, `max` at most.
    bytes: Vec<u8>,
    /// The last of what came behind those.
    end: Vec<u8>,
    max: usize,
    truncated: bool,
}

impl Output {
    fn up_to(max: usize) -> Self {
        Self { bytes: Vec::new(), end: Vec::new(), max, truncated: false }
    }

    fn take(&mut self, chunk: &[u8]) {
        let (kept, further) = chunk.split_at(chunk.len().min(self.max - self.bytes.len()));
        self.bytes.extend_from_slice(kept);
        self.truncated |= !further.is_empty();
        self.end.extend_from_slice(further);
        let surplus = self.end.len().saturating_sub(self.last_words_max());
        self.end.drain(..surplus);
    }

    fn last_words_max(&self) -> usize {
        self.max.min(LAST_WORDS_BYTES_MAX)
    }

    /// Its text, and whether there was more.
    fn told(&self) -> (String, bool) {
        (text(&self.bytes).0, self.truncated)
    }

    fn last_words(&self) -> (String, bool) {
        let (all, _) = text(&[&self.bytes[..], &self.end[..]].concat());
        let words = end_of(&all, self.last_words_max());
        (words.to_owned(), self.truncated || words.len() < all.len())
    }
}

/// The end that takes at most `max` bytes as JSON, without the quotes.
fn end_of(text: &str, max: usize) -> &str {
    let mut left = max;
    let fits = |(_, char): &(usize, char)| {
        let bytes = match char {
            '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
            '\0'..='\u{1f}' => 6,
            _ => char.len_utf8(),
        };
        let fits = bytes <= left;
        left = left.saturating_sub(bytes);
        fits
    };
    let first = text.char_indices().rev().take_while(fits).last();
    &text[first.map_or(text.len(), |(at, _)| at)..]
}

impl Exec {
    /// `named` holds NAME=PATH. What cannot be started is refused here and not at the first task.
    pub fn new(named: &[String], timeout: Duration, output_bytes_max: usize) -> Result<Self> {
        let programs = named.iter().map(|text| program(text)).collect::<Result<BTreeMap<_, _>>>()?;
        if programs.len() < named.len() {
            return Err(Error::invalid("--exec: a name is given twice."));
        }
        Ok(Self { programs, timeout, output_bytes_max })
    }

    pub fn is_empty(&self) -> bool {
        self.programs.is_empty()
    }

    pub async fn run(&self, lease: &Lease, abandon: &CancellationToken) -> std::result::Result<Json, Refusal> {
        let run: Run = payload(lease)?;
        let Some(program) = self.programs.get(&run.command) else {
            let known = self.programs.keys().cloned().collect::<Vec<_>>().join(", ");
            return Err(Refusal::payload(format!("There is no command {:?} here, only {known}.", run.command)));
        };
        if run.args.len() > ARGS_MAX || run.args.iter().any(|arg| arg.contains('\0')) {
            return Err(Refusal::payload(format!("args must be at most {ARGS_MAX} texts without NUL.")));
        }
        let mut child = self.start(program, &run.args)?;
        let mut group = Group(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw));
        tokio::select! {
            ended = self.finish(&mut child, &mut group, run.stdin) => ended,
            () = tokio::time::sleep(self.timeout) => {
                let message = format!("{} was still running after {} s and was ended.", run.command, self.timeout.as_secs());
                Err(Refusal::new("command_timed_out", message))
            }
            () = abandon.cancelled() => Err(Refusal::transport("The worker was stopped.")),
        }
    }

    fn start(&self, program: &Path, args: &[String]) -> std::result::Result<Child, Refusal> {
        let kept = ENVIRONMENT.iter().filter_map(|name| Some((*name, std::env::var_os(name)?)));
        let mut command = Command::new(program);
        command.args(args).env_clear().envs(kept).process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().map_err(|error| Refusal::new("command_not_started", format!("It cannot be started: {error}.")))
    }

    async fn finish(&self, child: &mut Child, group: &mut Group, stdin: String) -> std::result::Result<Json, Refusal> {
        let (input, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let feed = async move {
            if let Some(mut input) = input {
                // A program may end without reading what it was given.
                let _ = input.write_all(stdin.as_bytes()).await;
            }
        };
        let wait = async {
            let status = child.wait().await;
            group.kill();
            status
        };
        let max = self.output_bytes_max;
        let (status, (), out, err) = tokio::join!(wait, feed, read(out, max), read(err, max));
        let status = status.map_err(|error| Refusal::transport(format!("Nobody knows how it ended: {error}.")))?;
        report(status, &out, &err)
    }
}

fn report(status: ExitStatus, out: &Output, err: &Output) -> std::result::Result<Json, Refusal> {
    let fields = |(stdout, stdout_truncated): (String, bool), (stderr, stderr_truncated): (String, bool)| {
        json!({
            "exit_code": status.code(),
            "stdout": stdout,
            "stdout_truncated": stdout_truncated,
            "stderr": stderr,
            "stderr_truncated": stderr_truncated,
        })
    };
    if status.success() {
        return Ok(fields(out.told(), err.told()));
    }
    let mut refusal = Refusal::new("command_failed", format!("The command ended with {status}."));
    if let Json::Object(fields) = fields(out.last_words(), err.last_words()) {
        refusal.details = fields;
    }
    Err(refusal)
}

/// All there is, of which the first `max` bytes and the last words are kept: a program that writes more must not hang on a
/// full pipe.
async fn read(stream: Option<impl AsyncRead + Unpin>, max: usize) -> Output {
    let mut output = Output::up_to(max);
    let Some(mut stream) = stream else { return output };
    let mut chunk = vec![0; READ_BYTES];
    while let Ok(read @ 1..) = stream.read(&mut chunk).await {
        output.take(&chunk[..read]);
    }
    output
}

fn program(text: &str) -> Result<(String, PathBuf)> {
    let invalid = |why: &str| Error::invalid(format!("--exec {text}: {why}"));
    let (name, path) = text.split_once('=').ok_or_else(|| invalid("write it as NAME=/path/to/program."))?;
    let path = PathBuf::from(path);
    if name.is_empty() || !path.is_absolute() {
        return Err(invalid("it needs a name, and a path that begins with /."));
    }
    let file = std::fs::metadata(&path).map_err(|error| invalid(&format!("{error}.")))?;
    if !file.is_file() || file.permissions().mode() & 0o111 == 0 {
        return Err(invalid("that is no program."));
    }
    Ok((name.to_owned(), path))
}

#[cfg(test)]
mod tests {
    use waybill_kernel::Time;
    use waybill_kernel::id::Uuid;

    use super::*;

    fn lease(payload: Json) -> Lease {
        let (task_id, lease_id) = (Uuid::nil(), Uuid::nil());
        Lease { task_id, lease_id, kind: "exec".to_owned(), payload, attempt: 0, expires_at: Time::EPOCH }
    }

    fn exec(timeout: Duration) -> Exec {
        Exec::new(&["sh=/bin/sh".to_owned(), "cat=/bin/cat".to_owned()], timeout, 16).unwrap()
    }

    async fn run(payload: Json) -> std::result::Result<Json, Refusal> {
        exec(Duration::from_secs(20)).run(&lease(payload), &CancellationToken::new()).await
    }

    #[tokio::test]
    async fn arguments_and_input_arrive_as_given() {
        let args = json!(["-c", "printf '%s|' \"$@\"; exit 0", "x", "$(id)", "a b", ";"]);
        assert_eq!(run(json!({"command": "sh", "args": args})).await.unwrap()["stdout"], "$(id)|a b|;|");
        assert_eq!(run(json!({"command": "cat", "stdin": "né\n"})).await.unwrap()["stdout"], "né\n");
    }

    #[tokio::test]
    async fn output_is_cut_failure_is_told_and_strangers_are_refused() {
        let long =
            run(json!({"command": "sh", "args": ["-c", "head -c 200000 /dev/zero | tr '\\0' a"]})).await.unwrap();
        assert_eq!((&long["stdout"], &long["stdout_truncated"]), (&json!("a".repeat(16)), &json!(true)));
        let failed = run(json!({"command": "sh", "args": ["-c", "echo no >&2; exit 3"]})).await.unwrap_err();
        assert_eq!((failed.code, failed.retryable), ("command_failed", false));
        assert_eq!((&failed.details["exit_code"], &failed.details["stderr"]), (&json!(3), &json!("no\n")));
        for payload in [
            json!({"command": "/bin/sh"}),
            json!({"command": "sh", "env": {}}),
            json!({"command": "sh", "args": ["\0"]}),
            json!({}),
        ] {
            assert_eq!(run(payload.clone()).await.unwrap_err().code, "invalid_payload", "{payload}");
        }
    }

    #[tokio::test]
    async fn a_failure_keeps_its_status_and_the_end_of_what_was_said() {
        let exec = Exec::new(&["sh=/bin/sh".to_owned()], Duration::from_secs(20), 128 << 10).unwrap();
        // Less than is kept of a success, more than that, and what JSON makes six times as long.
        for (bytes, byte) in [(100_000, "e"), (1_000_000, "e"), (100_000, "\\001")] {
            let script = format!("head -c {bytes} /dev/zero | tr '\\0' '{byte}' >&2; echo the end >&2; exit 7");
            let task = lease(json!({"command": "sh", "args": ["-c", script]}));
            let details = exec.run(&task, &CancellationToken::new()).await.unwrap_err().details;
            assert_eq!((&details["exit_code"], &details["stderr_truncated"]), (&json!(7), &json!(true)));
            assert_eq!((&details["stdout"], &details["stdout_truncated"]), (&json!(""), &json!(false)));
            assert!(details["stderr"].as_str().unwrap().ends_with("the end\n"), "{bytes} of {byte}");
            let size = details["stderr"].to_string().len();
            assert!(size > LAST_WORDS_BYTES_MAX - 8 && size <= LAST_WORDS_BYTES_MAX + 2, "{size}");
        }
    }

    #[test]
    fn an_end_is_measured_as_json_and_cut_between_characters() {
        for (text, max, end) in
            [("abc", 2, "bc"), ("abc", 9, "abc"), ("aää", 3, "ä"), ("a\n", 2, "\n"), ("a\u{1}", 5, ""), ("", 3, "")]
        {
            assert_eq!(end_of(text, max), end, "{text:?}");
        }
    }

    #[tokio::test]
    async fn the_environment_of_the_worker_stays_with_it() {
        let ours = |name: &str| !ENVIRONMENT.contains(&name) && !["PWD", "OLDPWD", "SHLVL", "_"].contains(&name);
        assert!(std::env::vars().any(|(name, _)| ours(&name)), "there is nothing to keep back");
        let exec = Exec::new(&["sh=/bin/sh".to_owned()], Duration::from_secs(20), 1 << 20).unwrap();
        let task = lease(json!({"command": "sh", "args": ["-c", "env"]}));
        let shown = exec.run(&task, &CancellationToken::new()).await.unwrap();
        for line in shown["stdout"].as_str().unwrap().lines() {
            let name = line.split('=').next().unwrap();
            assert!(!ours(name), "{name} reached the program");
        }
    }

    /// A process of the group is gone, or a zombie that somebody else has yet to collect.
    fn is_gone(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.map_or(true, |stat| stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('Z'))
    }

    #[tokio::test]
    async fn a_background_process_neither_holds_the_task_nor_survives_it() {
        let quick = run(json!({"command": "sh", "args": ["-c", "sleep 1000 & echo $!"]})).await.unwrap();
        let pid = quick["stdout"].as_str().unwrap().trim().to_owned();
        while !is_gone(&pid) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn the_group_ends_with_the_time_the_worker_and_the_lease() {
        let folder = tempfile::tempdir().unwrap();
        for how in ["time", "abandon", "drop"] {
            let file = folder.path().join(how);
            let script = format!("sleep 1000 & echo $! > {0}.part; mv {0}.part {0}; wait", file.display());
            let task = lease(json!({"command": "sh", "args": ["-c", script]}));
            let abandon = CancellationToken::new();
            let limit = if how == "time" { Duration::from_secs(10) } else { Duration::from_secs(1000) };
            let exec = exec(limit);
            let work = exec.run(&task, &abandon);
            tokio::pin!(work);
            let started = async {
                while !file.exists() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::select! { _ = &mut work => panic!("{how}: it ended by itself"), () = started => {} }
            match how {
                "time" => assert_eq!(work.as_mut().await.unwrap_err().code, "command_timed_out"),
                "abandon" => {
                    abandon.cancel();
                    assert!(work.as_mut().await.is_err());
                }
                _ => {}
            }
            if how == "drop" {
                // The pinned future lives to the end of the block: a second run in its place drops it.
                work.set(exec.run(&task, &abandon));
            }
            let pid = std::fs::read_to_string(&file).unwrap();
            while !is_gone(pid.trim()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }

    #[test]
    fn only_programs_can_be_named() {
        for text in ["sh", "=/bin/sh", "sh=sh", "sh=bin/sh", "sh=/nowhere", "sh=/etc/passwd", "sh=/"] {
            assert!(Exec::new(&[text.to_owned()], Duration::ZERO, 0).is_err(), "{text}");
        }
        assert!(Exec::new(&["a=/bin/sh".to_owned(), "a=/bin/cat".to_owned()], Duration::ZERO, 0).is_err());
    }
}
