//! The program as a foreign client finds it, and the script that judges it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use super::Count;
use crate::process::{capture, result, say};
use crate::workspace::Workspace;

/// A dev build on a loaded two-core machine; a good start takes well under a second.
const READY_SECONDS_MAX: u64 = 60;
/// The longest takes a minute. A client that hangs must not hold everything up for ever.
const SCRIPT_SECONDS_MAX: u64 = 900;
/// Lines that a script may be ahead of us.
const LINES_MAX: usize = 1_000;

/// The program on its own data folder and free ports. The folder stays when something failed.
pub struct Server {
    child: Child,
    folder: PathBuf,
    url: String,
}

impl Server {
    pub fn start(workspace: &Workspace, name: &str, flags: &[&str]) -> anyhow::Result<Server> {
        let folder = workspace.target.join("foreign").join(name);
        if folder.exists() {
            std::fs::remove_dir_all(&folder).with_context(|| format!("cannot clear {}", folder.display()))?;
        }
        std::fs::create_dir_all(&folder)?;
        let log = std::fs::File::create(folder.join("stderr.log"))?;
        let mut command = Command::new(workspace.binary("debug", "waybill"));
        command.args(["serve", "--http", "127.0.0.1:0", "--sqs", "127.0.0.1:0", "--data"]).arg(folder.join("data"));
        command.args(flags).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().context("cannot start waybill")?;
        let mut server = Server { child, folder, url: String::new() };
        server.wait_ready().with_context(|| format!("see {}", server.folder.join("stderr.log").display()))?;
        Ok(server)
    }

    fn wait_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(READY_SECONDS_MAX);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                bail!("waybill ended before it was ready: {status}");
            }
            if let Ok(address) = self.address("http")
                && is_ready(&address)
            {
                self.url = format!("http://{address}");
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("waybill was not ready within {READY_SECONDS_MAX} s")
    }

    /// Of one of its listeners. A file that is absent or half written has none yet.
    pub fn address(&self, listener: &str) -> anyhow::Result<String> {
        let document: Value = serde_json::from_slice(&std::fs::read(self.folder.join("data/server.json"))?)?;
        document[listener].as_str().map(str::to_owned).with_context(|| format!("server.json has no {listener}"))
    }

    /// An access key id and its secret, for SQS clients.
    pub fn signing_key(&self, workspace: &Workspace) -> anyhow::Result<(String, String)> {
        let mut create = Command::new(workspace.binary("debug", "waybill"));
        create.args(["key", "create", "--sqs", "--json", "--principal", "agent:boto", "--data"]);
        let made: Value = serde_json::from_str(&capture(create.arg(self.folder.join("data")))?)?;
        let text = |field: &str| made[field].as_str().map(str::to_owned).with_context(|| format!("no {field}"));
        Ok((text("access_key_id")?, text("secret_access_key")?))
    }

    /// A key of somebody who is no admin.
    pub fn key_of(&self, workspace: &Workspace, principal: &str, scopes: &[&str]) -> anyhow::Result<String> {
        let mut create = Command::new(workspace.binary("debug", "waybill"));
        create.args(["key", "create", "--json", "--principal", principal]);
        create.args(scopes.iter().flat_map(|scope| ["--scope", scope])).arg("--data").arg(self.folder.join("data"));
        let made: Value = serde_json::from_str(&capture(&mut create)?)?;
        made["key"].as_str().map(str::to_owned).context("no key was made")
    }

    pub fn key(&self) -> anyhow::Result<String> {
        let file = self.folder.join("data/admin.key");
        let key = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(key.trim().to_owned())
    }

    /// Runs a script against this server, passing its output on, and reads the count from its last such line.
    pub fn judge(&self, script: &mut Command) -> anyhow::Result<Count> {
        let mut child = script.env("WAYBILL_URL", &self.url).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().context("the script has no output")?;
        let (mut count, deadline) = (None, Instant::now() + Duration::from_secs(SCRIPT_SECONDS_MAX));
        let lines = lines_of(output);
        let status = loop {
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    let line = line?;
                    result(&line);
                    count = Count::parse(&line).or(count);
                }
                Err(RecvTimeoutError::Disconnected) => break child.wait()?,
                Err(RecvTimeoutError::Timeout) => {
                    child.kill()?;
                    child.wait()?;
                    bail!("the script was not done within {SCRIPT_SECONDS_MAX} s");
                }
            }
        };
        let count = count.with_context(|| format!("the script ended without a count: {status}"))?;
        if !status.success() && count.failed == 0 {
            bail!("the script counted no failure but ended with {status}");
        }
        if count.failed > 0 {
            say(&format!("the server's log and data: {}", self.folder.display()));
        }
        Ok(count)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Read by a thread of their own, so that who waits for the next one can give up.
fn lines_of(output: ChildStdout) -> Receiver<std::io::Result<String>> {
    let (send, lines) = sync_channel(LINES_MAX);
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines() {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

fn is_ready(address: &str) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut head = [0; 12];
        stream.read_exact(&mut head)?;
        Ok(&head == b"HTTP/1.1 200")
    };
    ask().unwrap_or(false)
}
