//! Others that speak as SQS does, from npm, each started as its own documents say and with its log turned off.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;
use waybill_bench::signed::Signer;

use super::House;
use super::speech::{Counter, Speech};
use crate::process::Guarded;

const START_TIMEOUT: Duration = Duration::from_secs(60);
const START_PAUSE: Duration = Duration::from_millis(100);

/// Where npm has installed them.
#[derive(Clone, Default)]
pub struct Homes {
    pub fauxqs: Option<PathBuf>,
    pub elasticmq: Option<PathBuf>,
}

pub struct Rival {
    pub process: Guarded,
    addr: SocketAddr,
    house: House,
}

impl Rival {
    pub async fn start(house: House, homes: &Homes, dir: &Path) -> Result<Self> {
        let home = match house {
            House::Fauxqs => homes.fauxqs.as_deref(),
            _ => homes.elasticmq.as_deref(),
        };
        let home = home.context("not installed; `cargo xtask bench` does that")?;
        let home = home.canonicalize().with_context(|| format!("no folder {}", home.display()))?;
        std::fs::create_dir_all(dir)?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut command = match house {
            House::Fauxqs => fauxqs(&home, dir, port),
            _ => elasticmq(&home, dir, port)?,
        };
        let process = Guarded::spawn(command.current_dir(dir), dir.with_extension("log"), "TERM")?;
        let mut rival = Self { process, addr: (Ipv4Addr::LOCALHOST, port).into(), house };
        let began = Instant::now();
        loop {
            rival.process.check_running()?;
            match rival.open("first").await {
                Ok(_) => return Ok(rival),
                Err(error) if began.elapsed() > START_TIMEOUT => bail!("{error:#}: {}", rival.process.log_tail()),
                Err(_) => tokio::time::sleep(START_PAUSE).await,
            }
        }
    }

    pub async fn open(&self, queue: &str) -> Result<Counter> {
        let speech = match self.house {
            // It takes any signature.
            House::Fauxqs => {
                Speech::Json(Signer { addr: self.addr, id: "bench".to_owned(), secret: "bench".to_owned() })
            }
            _ => Speech::Forms,
        };
        Counter::open(self.addr, speech, queue, &json!({})).await
    }
}

fn fauxqs(home: &Path, dir: &Path, port: u16) -> Command {
    let start = "const [app, port, dataDir] = process.argv.slice(1); \
                 const { startFauxqs } = await import(app); \
                 await startFauxqs({ port: Number(port), logger: false, dataDir });";
    let mut command = Command::new(home.join("node_modules/node/bin/node"));
    command.args(["--input-type=module", "-e", start]);
    command.arg(home.join("node_modules/fauxqs/dist/app.js")).arg(port.to_string()).arg(dir);
    command
}

fn elasticmq(home: &Path, dir: &Path, port: u16) -> Result<Command> {
    let folder = home.join("node_modules/elasticmq");
    let jars = std::fs::read_dir(&folder).with_context(|| format!("no folder {}", folder.display()))?;
    let mut jars = jars.filter_map(|entry| Some(entry.ok()?.path()));
    let jar = jars.find(|path| path.extension().is_some_and(|kind| kind == "jar")).context("elasticmq has no jar")?;
    let config = dir.join("elasticmq.conf");
    let text = format!(
        "include classpath(\"application.conf\")\n\
         node-address {{ protocol = http, host = \"127.0.0.1\", port = {port}, context-path = \"\" }}\n\
         rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = \"127.0.0.1\", sqs-limits = strict }}\n"
    );
    std::fs::write(&config, text)?;
    let mut command = Command::new("java");
    // It is older than the modules of Java 9.
    command.args(["--add-opens", "java.base/java.util.regex=ALL-UNNAMED"]);
    command.arg(format!("-Dconfig.file={}", config.display())).arg("-jar").arg(jar);
    Ok(command)
}
