//! Clients of SQS, each against a server of its own. They mostly wait, so two of them run at a time.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::Context;

use super::Count;
use super::server::Server;
use crate::process::{self, say};
use crate::setup::{SQS_CLIENTS_VENV, SQS_NPM, SQS_QUERY_VENV, postgres_bin};
use crate::workspace::Workspace;

pub fn run(workspace: &Workspace, total: &mut Count) {
    // Before anything is measured in seconds.
    let rust = rust(workspace);
    let outcomes = std::thread::scope(|scope| {
        let lanes = [scope.spawn(|| boto(workspace)), scope.spawn(|| others(workspace, rust))];
        lanes.map(|lane| lane.join().unwrap_or_else(|_| vec![Err(anyhow::anyhow!("a client's lane panicked"))]))
    });
    outcomes.into_iter().flatten().for_each(|outcome| total.add(outcome));
}

type Outcomes = Vec<anyhow::Result<Count>>;

/// boto3 in releases that speak each of the protocols, and on both stores.
fn boto(workspace: &Workspace) -> Outcomes {
    let boto = |protocol: &str, store: &str, python: PathBuf, flags: &[&str]| {
        let mut client = workspace.command(python);
        client.arg("tests/sqs/boto.py").env("WAYBILL_SQS_PROTOCOL", protocol);
        judge(workspace, &format!("boto-{protocol}-{store}"), flags, &mut client)
    };
    let mut outcomes = vec![
        boto("json", "sqlite", workspace.python(), &[]),
        boto("query", "sqlite", python(workspace, SQS_QUERY_VENV), &[]),
    ];
    match test_database(workspace, "boto3") {
        Ok(Some(url)) => outcomes.push(boto("json", "postgres", workspace.python(), &["--store", &url])),
        Ok(None) => {
            say("boto3 on PostgreSQL: left out, since no cluster of the test kit runs (`cargo xtask test` starts one)")
        }
        Err(error) => outcomes.push(Err(error)),
    }
    outcomes
}

fn others(workspace: &Workspace, rust: anyhow::Result<Command>) -> Outcomes {
    let script = |file: &str| {
        let mut client = workspace.command(python(workspace, SQS_CLIENTS_VENV));
        client.arg(file);
        client
    };
    vec![
        judge(workspace, "javascript", &[], &mut javascript(workspace)),
        rust.and_then(|mut client| judge(workspace, "rust", &[], &mut client)),
        judge(workspace, "celery", &[], &mut script("tests/sqs/celery_worker.py")),
        judge(workspace, "aws-cli", &[], &mut script("tests/sqs/cli.py")),
    ]
}

fn python(workspace: &Workspace, venv: &str) -> PathBuf {
    workspace.venv(venv).join("bin/python")
}

/// By the Node that the MCP suite brings: distributions ship older ones.
fn javascript(workspace: &Workspace) -> Command {
    let mut client = workspace.command(workspace.npm("stable").join("node_modules/.bin/node"));
    client.arg("tests/sqs/client.mjs").env("WAYBILL_SQS_SDK", workspace.npm(SQS_NPM));
    client
}

/// Built apart from the program: neither its dependencies nor its lock file are the program's.
fn rust(workspace: &Workspace) -> anyhow::Result<Command> {
    let target = workspace.cache().join("sqs-rust");
    let mut build = workspace.cargo();
    build.args(["build", "--locked", "--quiet", "--manifest-path", "tests/sqs/rust/Cargo.toml", "--target-dir"]);
    process::run(build.arg(&target))?;
    Ok(workspace.command(target.join("debug/sqs-by-rust")))
}

/// Runs a client against a new server, with a key of its own.
fn judge(workspace: &Workspace, name: &str, flags: &[&str], client: &mut Command) -> anyhow::Result<Count> {
    let began = Instant::now();
    let server = Server::start(workspace, &format!("sqs-{name}"), flags).with_context(|| name.to_owned())?;
    let (id, secret) = server.signing_key(workspace)?;
    client.env("WAYBILL_SQS_ENDPOINT", format!("http://{}", server.address("sqs")?));
    client.env("AWS_ACCESS_KEY_ID", id).env("AWS_SECRET_ACCESS_KEY", secret);
    // Modules beside a script would leave a folder in the repository.
    client.env("PYTHONDONTWRITEBYTECODE", "1");
    let count = server.judge(client).with_context(|| name.to_owned());
    say(&format!("SQS by {name}: {:.1} s", began.elapsed().as_secs_f64()));
    count
}

/// A new database in the cluster that the test kit leaves running, while it does.
fn test_database(workspace: &Workspace, name: &str) -> anyhow::Result<Option<String>> {
    let home = workspace.target.join("testkit-pg");
    let elsewhere = std::fs::read_to_string(home.join("elsewhere")).ok().map(|path| PathBuf::from(path.trim()));
    let pid_files = [Some(home), elsewhere].into_iter().flatten().map(|home| home.join("shared/data/postmaster.pid"));
    let Some(text) = pid_files.filter_map(|file| std::fs::read_to_string(file).ok()).next() else {
        return Ok(None);
    };
    let port = text.lines().nth(3).context("the cluster does not say its port")?.trim();
    let bin = postgres_bin().context("PostgreSQL's programs are not installed")?;
    for (program, more) in [("dropdb", Some("--if-exists")), ("createdb", None)] {
        let mut command = Command::new(bin.join(program));
        command.args(["-h", "127.0.0.1", "-p", port, "-U", "postgres"]).args(more).arg(name);
        process::run(&mut command)?;
    }
    Ok(Some(format!("postgres://postgres@127.0.0.1:{port}/{name}")))
}
