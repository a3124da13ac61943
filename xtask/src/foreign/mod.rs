//! `cargo xtask foreign`: clients that are not ours against the real program. A script in `tests/` gets the address
//! and the key in WAYBILL_URL and WAYBILL_KEY, or those of the SQS listener, prints one line per case, and ends with
//! `N passed, M failed`.

mod server;
mod sqs;

use anyhow::bail;

use self::server::Server;
use crate::process::{result, say};
use crate::test::stop_databases;
use crate::workspace::Workspace;

pub fn run(workspace: &Workspace) -> anyhow::Result<()> {
    workspace.build_programs()?;
    let mut total = Count::default();
    total.add(python_client(workspace));
    total.add(mail(workspace));
    total.add(conformance(workspace));
    total.add(openapi(workspace));
    sqs::run(workspace, &mut total);
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

/// Three agents, each under a key of its own.
fn mail(workspace: &Workspace) -> anyhow::Result<Count> {
    let server = Server::start(workspace, "mail", &[])?;
    let mut keys = Vec::new();
    for principal in ["agent:one", "agent:two", "agent:three"] {
        keys.push(server.key_of(workspace, principal, &["mail:read", "mail:write"])?);
    }
    let mut client = workspace.command(workspace.python());
    server.judge(client.arg("tests/python/mail_session.py").env("WAYBILL_KEYS", keys.join(" ")))
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
