//! mcp-agent-mail from PyPI, a fork of the server that the tools are named after: started from the virtual environment it is
//! installed in, with its log, its calls of language models and its roles turned off. Everything else is its default.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::http;
use crate::process::Guarded;

const START_TIMEOUT: Duration = Duration::from_secs(60);
const START_PAUSE: Duration = Duration::from_millis(100);
pub const PATH: &str = "/mcp/";

/// Nothing is looked for beyond the loopback: neither prices of models nor newer versions.
const ENVIRONMENT: [(&str, &str); 8] = [
    ("LLM_ENABLED", "false"),
    ("LITELLM_LOCAL_MODEL_COST_MAP", "True"),
    ("FASTMCP_CHECK_FOR_UPDATES", "off"),
    ("DO_NOT_TRACK", "1"),
    ("HTTP_RBAC_ENABLED", "false"),
    ("TOOLS_LOG_ENABLED", "false"),
    ("LOG_RICH_ENABLED", "false"),
    ("LOG_LEVEL", "ERROR"),
];

pub struct Rival {
    pub process: Guarded,
    pub addr: SocketAddr,
}

impl Rival {
    pub async fn start(home: Option<&Path>, dir: &Path) -> Result<Self> {
        let home = home.context("not installed; give --agent-mail a virtual environment that has mcp-agent-mail")?;
        let python = std::path::absolute(home.join("bin/python"))?;
        std::fs::create_dir_all(dir)?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut command = Command::new(python);
        command.args(["-m", "mcp_agent_mail.cli", "serve-http", "--host", "127.0.0.1", "--port", &port.to_string()]);
        command.envs(ENVIRONMENT).env("HOME", dir).env("STORAGE_ROOT", dir.join("archive"));
        command.env("DATABASE_URL", format!("sqlite+aiosqlite:///{}", dir.join("storage.sqlite3").display()));
        let process = Guarded::spawn(command.current_dir(dir), dir.with_extension("log"), "TERM")?;
        let mut rival = Self { process, addr: (Ipv4Addr::LOCALHOST, port).into() };
        let began = Instant::now();
        while http::get(rival.addr, "/", None).await.is_err() {
            rival.process.check_running()?;
            if began.elapsed() > START_TIMEOUT {
                bail!("not ready after {} s: {}", START_TIMEOUT.as_secs(), rival.process.log_tail());
            }
            tokio::time::sleep(START_PAUSE).await;
        }
        Ok(rival)
    }
}
