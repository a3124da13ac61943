//! `cargo xtask foreign`: clients that are not ours against the real program. A script in `tests/` gets the address
//! and the key in WAYBILL_URL and WAYBILL_KEY, prints one line per case, and ends with `N passed, M failed`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::process::{capture, result, run as run_program, say};
use crate::setup::{SQS_QUERY_VENV, postgres_bin};
use crate::test::stop_databases;
use crate::workspace::Workspace;

/// A dev build on a loaded two-core machine; a good start takes well under a second.
const READY_SECONDS_MAX: u64 = 60;

pub fn run(workspace: &Workspace) -> anyhow::Result<()> {
    workspace.build_programs()?;
    let mut total = Count::default();
    total.add(python_client(workspace));
    total.add(conformance(workspace));
    total.add(openapi(workspace));
    total.add(sqs(workspace, "json", workspace.python()));
    total.add(sqs(workspace, "query", workspace.venv(SQS_QUERY_VENV).join("bin/python")));
    if let Some(url) = test_database(workspace, "boto3")? {
        total.add(sqs_on(workspace, "json", workspace.python(), &["--store", &url]));
    }
    // Before the count, which is the last line.
    stop_databases(workspace)?;
    result(&total.line());
    if total.failed > 0 {
        bail!("{} cases of foreign clients failed", total.failed);
    }
    Ok(())
}

fn python_client(workspace: &Workspace) -> anyhow::Result<Count> {
    let server = Server::start(workspace, "python", &[])?;
    let mut client = workspace.command(workspace.python());
    client.arg("tests/python/mcp_client.py").env("WAYBILL_KEY", server.key()?);
    client.env("WAYBILL_BIN", workspace.binary("debug", "waybill"));
    server.judge(&mut client)
}

/// The suite sends no credentials, hence the open server.
fn conformance(workspace: &Workspace) -> anyhow::Result<Count> {
    let server = Server::start(workspace, "conformance", &["--insecure-dev"])?;
    let mut suite = workspace.command(workspace.python());
    suite.arg("tests/conformance/run.py");
    suite.env("CONFORMANCE_STABLE", workspace.npm("stable")).env("CONFORMANCE_NEXT", workspace.npm("next"));
    server.judge(&mut suite)
}

/// Requests made from the server's own description of itself.
fn openapi(workspace: &Workspace) -> anyhow::Result<Count> {
    let server = Server::start(workspace, "openapi", &[])?;
    let mut client = workspace.command(workspace.python());
    server.judge(client.arg("tests/openapi/run.py").env("WAYBILL_KEY", server.key()?))
}

/// boto3 in the release that speaks this protocol.
fn sqs(workspace: &Workspace, protocol: &str, python: PathBuf) -> anyhow::Result<Count> {
    sqs_on(workspace, protocol, python, &[])
}

fn sqs_on(workspace: &Workspace, protocol: &str, python: PathBuf, flags: &[&str]) -> anyhow::Result<Count> {
    let server = Server::start(workspace, &format!("sqs-{protocol}{}", flags.len()), flags)?;
    let (id, secret) = server.signing_key(workspace)?;
    let mut client = workspace.command(python);
    client.arg("tests/sqs/boto.py").env("WAYBILL_SQS_PROTOCOL", protocol);
    client.env("WAYBILL_SQS_ENDPOINT", format!("http://{}", server.address("sqs")?));
    client.env("AWS_ACCESS_KEY_ID", id).env("AWS_SECRET_ACCESS_KEY", secret);
    server.judge(&mut client)
}

/// A new database in the cluster that the test kit leaves running, while it does.
fn test_database(workspace: &Workspace, name: &str) -> anyhow::Result<Option<String>> {
    let home = workspace.target.join("testkit-pg");
    let elsewhere = std::fs::read_to_string(home.join("elsewhere")).ok().map(|path| PathBuf::from(path.trim()));
    let pid_files = [Some(home), elsewhere].into_iter().flatten().map(|home| home.join("shared/data/postmaster.pid"));
    let Some(text) = pid_files.filter_map(|file| std::fs::read_to_string(file).ok()).next() else {
        say(
            "SQS clients on PostgreSQL: left out, since no cluster of the test kit runs (`cargo xtask test` starts one)",
        );
        return Ok(None);
    };
    let port = text.lines().nth(3).context("the cluster does not say its port")?.trim();
    let bin = postgres_bin().context("PostgreSQL's programs are not installed")?;
    for (program, more) in [("dropdb", Some("--if-exists")), ("createdb", None)] {
        let mut command = Command::new(bin.join(program));
        command.args(["-h", "127.0.0.1", "-p", port, "-U", "postgres"]).args(more).arg(name);
        run_program(&mut command)?;
    }
    Ok(Some(format!("postgres://postgres@127.0.0.1:{port}/{name}")))
}

#[derive(Debug, Default, PartialEq)]
struct Count {
    passed: u64,
    failed: u64,
}

impl Count {
    /// A script that could not be run to its end is one failed case.
    fn add(&mut self, outcome: anyhow::Result<Count>) {
        match outcome {
            Ok(count) => {
                self.passed += count.passed;
                self.failed += count.failed;
            }
            Err(error) => {
                say(&format!("foreign client: {error:#}"));
                self.failed += 1;
            }
        }
    }

    fn line(&self) -> String {
        format!("{} passed, {} failed", self.passed, self.failed)
    }

    fn parse(line: &str) -> Option<Count> {
        let (passed, failed) = line.trim().split_once(" passed, ")?;
        Some(Count { passed: passed.parse().ok()?, failed: failed.strip_suffix(" failed")?.parse().ok()? })
    }
}

/// The program on its own data folder and free ports. The folder stays when something failed.
struct Server {
    child: Child,
    folder: PathBuf,
    url: String,
}

impl Server {
    fn start(workspace: &Workspace, name: &str, flags: &[&str]) -> anyhow::Result<Server> {
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
    fn address(&self, listener: &str) -> anyhow::Result<String> {
        let document: Value = serde_json::from_slice(&std::fs::read(self.folder.join("data/server.json"))?)?;
        document[listener].as_str().map(str::to_owned).with_context(|| format!("server.json has no {listener}"))
    }

    /// An access key id and its secret, for SQS clients.
    fn signing_key(&self, workspace: &Workspace) -> anyhow::Result<(String, String)> {
        let mut create = Command::new(workspace.binary("debug", "waybill"));
        create.args(["key", "create", "--sqs", "--json", "--principal", "agent:boto", "--data"]);
        let made: Value = serde_json::from_str(&capture(create.arg(self.folder.join("data")))?)?;
        let text = |field: &str| made[field].as_str().map(str::to_owned).with_context(|| format!("no {field}"));
        Ok((text("access_key_id")?, text("secret_access_key")?))
    }

    fn key(&self) -> anyhow::Result<String> {
        let file = self.folder.join("data/admin.key");
        let key = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(key.trim().to_owned())
    }

    /// Runs a script against this server, passing its output on, and reads the count from its last such line.
    fn judge(&self, script: &mut Command) -> anyhow::Result<Count> {
        let mut child = script.env("WAYBILL_URL", &self.url).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().context("the script has no output")?;
        let mut count = None;
        for line in BufReader::new(output).lines() {
            let line = line?;
            result(&line);
            count = Count::parse(&line).or(count);
        }
        let status = child.wait()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_read_from_its_own_line_only() {
        assert_eq!(Count::parse("12 passed, 3 failed"), Some(Count { passed: 12, failed: 3 }));
        assert_eq!(Count::parse("test result: ok. 12 passed; 0 failed"), None);
        assert_eq!(Count::parse("all passed, 0 failed"), None);
    }
}
