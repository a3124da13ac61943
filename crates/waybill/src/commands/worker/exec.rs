//! `exec`: a program the operator has named, with the arguments of the task. No shell, no environment of ours, and all it
//! has started ends with the task.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{getpid, set_child_subreaper};
use serde::Deserialize;
use serde_json::{Value as Json, json};
use tokio_util::sync::CancellationToken;
use waybill_client::Lease;
use waybill_keeper::{Exit, Output, Program, Start};
use waybill_kernel::{Error, Result};

use super::handlers::{Stop, payload};
use super::held::Refusal;

/// What a program may need to find its way; everything else, keys above all, stays here.
const ENVIRONMENT: [&str; 7] = ["PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR"];
const ARGS_MAX: usize = 1_000;
/// The program that runs here, also when its file has been replaced meanwhile.
pub const OWN: &str = "/proc/self/exe";

pub struct Exec {
    programs: BTreeMap<String, PathBuf>,
    /// Where this program is found, which keeps those it starts.
    own: PathBuf,
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

impl Exec {
    /// `named` holds NAME=PATH. What cannot be started is refused here and not at the first task.
    pub fn new(named: &[String], own: PathBuf, timeout: Duration, output_bytes_max: usize) -> Result<Self> {
        let programs = named.iter().map(|text| program(text)).collect::<Result<BTreeMap<_, _>>>()?;
        if programs.len() < named.len() {
            return Err(Error::invalid("--exec: a name is given twice."));
        }
        if !programs.is_empty() {
            // What a keeper that was killed leaves behind comes to us.
            set_child_subreaper(Some(getpid())).map_err(Error::internal)?;
        }
        Ok(Self { programs, own, timeout, output_bytes_max })
    }

    pub fn is_empty(&self) -> bool {
        self.programs.is_empty()
    }

    /// Until it has ended, its time is up, or it is to end.
    pub async fn run(&self, lease: &Lease, end: &CancellationToken) -> std::result::Result<Json, Stop> {
        let run: Run = payload(lease)?;
        let Some(program) = self.programs.get(&run.command) else {
            let known = self.programs.keys().cloned().collect::<Vec<_>>().join(", ");
            return Err(Refusal::payload(format!("There is no command {:?} here, only {known}.", run.command)).into());
        };
        if run.args.len() > ARGS_MAX || run.args.iter().any(|arg| arg.contains('\0')) {
            return Err(Refusal::payload(format!("args must be at most {ARGS_MAX} texts without NUL.")).into());
        }
        let not_started = |why: String| Refusal::new("command_not_started", format!("It cannot be started: {why}."));
        let args: Vec<OsString> = run.args.iter().map(OsString::from).collect();
        let environment: Vec<_> =
            ENVIRONMENT.iter().filter_map(|name| Some(((*name).into(), std::env::var_os(name)?))).collect();
        let start = Start {
            own: &self.own,
            program,
            args: &args,
            environment: &environment,
            folder: None,
            output_bytes_max: self.output_bytes_max,
        };
        let mut program = Program::start(&start).map_err(|error| not_started(error.to_string()))?;
        let exit = tokio::select! {
            exit = program.finish(run.stdin.as_bytes()) => exit,
            () = tokio::time::sleep(self.timeout) => {
                let after = format!("{} was still running after {} s", run.command, self.timeout.as_secs());
                let message = format!("{after}; {}.", stopped(program.end().await));
                return Err(Refusal::new("command_timed_out", message).into());
            }
            () = end.cancelled() => return Err(Stop::Told(stopped(program.end().await))),
        };
        match exit {
            Exit::Known(status) => Ok(report(status, &program.out, &program.err)?),
            Exit::NotStarted(why) => Err(not_started(why).into()),
            Exit::Unknown => Err(Refusal::transport("Nobody knows how the program ended.").into()),
        }
    }
}

/// What became of a program that was to end.
fn stopped(left: usize) -> String {
    match left {
        0 => "the program was ended with all it had started".to_owned(),
        left => format!("the program was ended, but {left} of the processes it started could not be"),
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
    use waybill_keeper::LAST_WORDS_BYTES_MAX;
    use waybill_kernel::Time;
    use waybill_kernel::id::Uuid;

    use super::*;

    fn lease(payload: Json) -> Lease {
        let (task_id, lease_id) = (Uuid::nil(), Uuid::nil());
        Lease { task_id, lease_id, kind: "exec".to_owned(), payload, attempt: 0, expires_at: Time::EPOCH }
    }

    /// The program as it was built: the one that runs the tests keeps nobody.
    fn exec(named: &[&str], timeout: Duration, output_bytes_max: usize) -> Exec {
        let named: Vec<_> = named.iter().map(|text| (*text).to_owned()).collect();
        Exec::new(&named, waybill_testkit::server::binary(), timeout, output_bytes_max).unwrap()
    }

    async fn run_with(exec: &Exec, payload: Json) -> std::result::Result<Json, Refusal> {
        exec.run(&lease(payload), &CancellationToken::new()).await.map_err(|stop| match stop {
            Stop::Refused(refusal) => refusal,
            Stop::Told(how) => panic!("nobody told it to stop: {how}"),
        })
    }

    async fn run(payload: Json) -> std::result::Result<Json, Refusal> {
        run_with(&exec(&["sh=/bin/sh", "cat=/bin/cat"], Duration::from_secs(20), 16), payload).await
    }

    #[tokio::test]
    async fn arguments_and_input_arrive_as_given() {
        let args = json!(["-c", "printf '%s|' \"$@\"; exit 0", "x", "$(id)", "a b", ";"]);
        assert_eq!(run(json!({"command": "sh", "args": args})).await.unwrap()["stdout"], "$(id)|a b|;|");
        assert_eq!(run(json!({"command": "cat", "stdin": "né\n"})).await.unwrap()["stdout"], "né\n");
        // More than a pipe holds, and not read.
        let unread = json!({"command": "sh", "args": ["-c", "echo fine"], "stdin": "x".repeat(1 << 20)});
        assert_eq!(run(unread).await.unwrap()["stdout"], "fine\n");
    }

    #[tokio::test]
    async fn output_is_cut_failure_is_told_and_strangers_are_refused() {
        let long =
            run(json!({"command": "sh", "args": ["-c", "head -c 200000 /dev/zero | tr '\\0' a"]})).await.unwrap();
        assert_eq!((&long["stdout"], &long["stdout_truncated"]), (&json!("a".repeat(16)), &json!(true)));
        let failed = run(json!({"command": "sh", "args": ["-c", "echo no >&2; exit 3"]})).await.unwrap_err();
        assert_eq!((failed.code, failed.retryable), ("command_failed", false));
        assert_eq!((&failed.details["exit_code"], &failed.details["stderr"]), (&json!(3), &json!("no\n")));
        let killed = run(json!({"command": "sh", "args": ["-c", "kill -9 $$"]})).await.unwrap_err();
        assert!(killed.message.contains("signal: 9"), "{}", killed.message);
        assert_eq!((killed.code, &killed.details["exit_code"]), ("command_failed", &Json::Null));
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
    async fn what_cannot_be_started_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("program");
        std::fs::write(&file, "#!/nowhere\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        let exec = exec(&[&format!("x={}", file.display())], Duration::from_secs(20), 16);
        let refusal = run_with(&exec, json!({"command": "x"})).await.unwrap_err();
        assert_eq!((refusal.code, refusal.retryable), ("command_not_started", false), "{}", refusal.message);
    }

    #[tokio::test]
    async fn a_failure_keeps_its_status_and_the_end_of_what_was_said() {
        let exec = exec(&["sh=/bin/sh"], Duration::from_secs(20), 128 << 10);
        // Less than is kept of a success, more than that, and what JSON makes six times as long.
        for (bytes, byte) in [(100_000, "e"), (1_000_000, "e"), (100_000, "\\001")] {
            let script = format!("head -c {bytes} /dev/zero | tr '\\0' '{byte}' >&2; echo the end >&2; exit 7");
            let details = run_with(&exec, json!({"command": "sh", "args": ["-c", script]})).await.unwrap_err().details;
            assert_eq!((&details["exit_code"], &details["stderr_truncated"]), (&json!(7), &json!(true)));
            assert_eq!((&details["stdout"], &details["stdout_truncated"]), (&json!(""), &json!(false)));
            assert!(details["stderr"].as_str().unwrap().ends_with("the end\n"), "{bytes} of {byte}");
            let size = details["stderr"].to_string().len();
            assert!(size > LAST_WORDS_BYTES_MAX - 8 && size <= LAST_WORDS_BYTES_MAX + 2, "{size}");
        }
    }

    #[tokio::test]
    async fn the_environment_of_the_worker_stays_with_it() {
        let ours = |name: &str| !ENVIRONMENT.contains(&name) && !["PWD", "OLDPWD", "SHLVL", "_"].contains(&name);
        assert!(std::env::vars().any(|(name, _)| ours(&name)), "there is nothing to keep back");
        let exec = exec(&["sh=/bin/sh"], Duration::from_secs(20), 1 << 20);
        // Its own, and that of its keeper.
        let script = "env; tr '\\0' '\\n' < /proc/$PPID/environ || true";
        let shown = run_with(&exec, json!({"command": "sh", "args": ["-c", script]})).await.unwrap();
        for line in shown["stdout"].as_str().unwrap().lines() {
            let name = line.split('=').next().unwrap();
            assert!(!ours(name), "{name} reached the program");
        }
    }

    /// Gone, or a zombie that somebody else has yet to collect.
    fn is_gone(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.map_or(true, |stat| stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('Z'))
    }

    /// Starts a sleeper in each of the ways there are to get out of a program's reach, and names all three in a file: in the
    /// background, in a session of its own, and there with a parent that is gone.
    fn sleepers(file: &std::path::Path) -> String {
        let session = "setsid sh -c 'echo $$; exec sleep 1000' &";
        format!(
            "{{ sleep 1000 & echo $!; {session} ( ( {session} ) & ) }} > {0}.part
             while [ $(wc -l < {0}.part) -lt 3 ]; do sleep 0.01; done; mv {0}.part {0}",
            file.display()
        )
    }

    fn started(file: &std::path::Path) -> Vec<String> {
        std::fs::read_to_string(file).unwrap().lines().map(|line| line.trim().to_owned()).collect()
    }

    #[tokio::test]
    async fn no_process_holds_the_task_or_survives_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pids");
        let script = sleepers(&file);
        run(json!({"command": "sh", "args": ["-c", script]})).await.unwrap();
        // Not soon, but by the time the program's end is told.
        let started = started(&file);
        assert_eq!(started.len(), 3, "{started:?}");
        assert!(started.iter().all(|pid| is_gone(pid)), "{started:?}");
    }

    #[tokio::test]
    async fn a_program_that_kills_its_keeper_ends_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pids");
        let script = format!("{}; kill -9 $PPID; sleep 1000", sleepers(&file));
        let refusal = run(json!({"command": "sh", "args": ["-c", script]})).await.unwrap_err();
        assert_eq!((refusal.code, refusal.retryable), ("transport_error", true), "{}", refusal.message);
        assert!(started(&file).iter().all(|pid| is_gone(pid)), "{:?}", started(&file));
    }

    #[tokio::test]
    async fn a_program_that_stops_its_keeper_ends_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pids");
        let script = format!("kill -STOP $PPID; {}; sleep 1000", sleepers(&file));
        let (task, end) = (lease(json!({"command": "sh", "args": ["-c", script]})), CancellationToken::new());
        let exec = exec(&["sh=/bin/sh"], Duration::from_secs(1000), 16);
        let told = async {
            while !file.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            end.cancel();
        };
        let (ended, ()) = tokio::join!(exec.run(&task, &end), told);
        let Err(Stop::Told(how)) = ended else { panic!("it went on") };
        assert_eq!(how, stopped(0));
        assert!(started(&file).iter().all(|pid| is_gone(pid)), "{:?}", started(&file));
    }

    #[tokio::test]
    async fn all_of_it_ends_with_the_time_the_worker_and_the_lease() {
        let folder = tempfile::tempdir().unwrap();
        for how in ["time", "told", "drop"] {
            let file = folder.path().join(how);
            let task = lease(json!({"command": "sh", "args": ["-c", format!("{}; sleep 1000", sleepers(&file))]}));
            let end = CancellationToken::new();
            let limit = if how == "time" { Duration::from_secs(10) } else { Duration::from_secs(1000) };
            let exec = exec(&["sh=/bin/sh"], limit, 16);
            let work = exec.run(&task, &end);
            tokio::pin!(work);
            let begun = async {
                while !file.exists() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::select! { _ = &mut work => panic!("{how}: it ended by itself"), () = begun => {} }
            match how {
                "time" => match work.as_mut().await.unwrap_err() {
                    Stop::Refused(refusal) => assert_eq!(refusal.code, "command_timed_out"),
                    Stop::Told(how) => panic!("{how}"),
                },
                "told" => {
                    end.cancel();
                    let Err(Stop::Told(how)) = work.as_mut().await else { panic!("it went on") };
                    assert_eq!(how, stopped(0));
                }
                // The pinned future lives to the end of the block: a second run in its place drops it.
                _ => work.set(exec.run(&task, &end)),
            }
            for pid in started(&file) {
                while !is_gone(&pid) {
                    assert_eq!(how, "drop", "{pid} was said to be gone");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
    }

    #[test]
    fn only_programs_can_be_named() {
        let new = |named: &[&str]| {
            let named: Vec<_> = named.iter().map(|text| (*text).to_owned()).collect();
            Exec::new(&named, OWN.into(), Duration::ZERO, 0)
        };
        for text in ["sh", "=/bin/sh", "sh=sh", "sh=bin/sh", "sh=/nowhere", "sh=/etc/passwd", "sh=/"] {
            assert!(new(&[text]).is_err(), "{text}");
        }
        assert!(new(&["a=/bin/sh", "a=/bin/cat"]).is_err());
    }
}
