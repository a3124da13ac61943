//! A Redis of one's own: a process on a free port with a folder of its own, which goes with its owner.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tempfile::TempDir;

const READY_WAIT_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);
/// Between choosing a free port and the server's bind somebody else may take it.
const START_ATTEMPTS_MAX: u32 = 5;

pub struct Redis {
    port: u16,
    child: Child,
    folder: TempDir,
}

impl Redis {
    pub fn start() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        for _ in 0..START_ATTEMPTS_MAX {
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
            let mut child = spawn(port, &folder)?;
            if is_ready(port, &mut child)? {
                return Ok(Self { port, child, folder });
            }
        }
        bail!("redis-server found no free port")
    }

    /// `redis://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// As a crash leaves it.
    pub fn kill9(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// On the same port, with nothing in it.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        let _ = self.kill9();
        self.child = spawn(self.port, &self.folder)?;
        match is_ready(self.port, &mut self.child)? {
            true => Ok(()),
            false => bail!("redis-server did not start again on port {}", self.port),
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.kill9();
    }
}

fn spawn(port: u16, folder: &TempDir) -> anyhow::Result<Child> {
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no", "--dir"]);
    command.arg(folder.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().context("redis-server is missing: run `cargo xtask setup`")
}

/// False when the process has ended, as it does when the port is taken.
fn is_ready(port: u16, child: &mut Child) -> anyhow::Result<bool> {
    let deadline = Instant::now() + READY_WAIT_MAX;
    while Instant::now() < deadline {
        if child.try_wait()?.is_some() {
            return Ok(false);
        }
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(true);
        }
        std::thread::sleep(POLL);
    }
    bail!("redis-server does not answer after {READY_WAIT_MAX:?}")
}
