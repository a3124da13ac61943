//! An endpoint on a port of its own: keeps what it was sent, and answers as it is told.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value as Json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

#[derive(Clone, Debug)]
pub struct Request {
    pub line: String,
    pub headers: HashMap<String, String>,
    pub body: String,
}

impl Request {
    pub fn id(&self) -> &str {
        &self.headers["webhook-id"]
    }

    pub fn json(&self) -> Json {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// What to do with the request of this number, counted from 0.
#[derive(Clone, Copy)]
pub enum Do {
    Answer(u16),
    /// With Retry-After, in seconds.
    AskForTime(u16, u64),
    /// Only once it is released.
    Hold(u16),
    /// Never.
    Ignore,
}

pub struct Receiver {
    pub url: String,
    state: Arc<State>,
    release: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    requests: Mutex<Vec<Request>>,
    under_way: AtomicUsize,
    most: AtomicUsize,
}

impl Receiver {
    pub async fn start(plan: fn(usize) -> Do) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://localhost:{}/hook", listener.local_addr().unwrap().port());
        let state = Arc::<State>::default();
        let (release, released) = watch::channel(false);
        let shared = Arc::clone(&state);
        let serving = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, plan, Arc::clone(&shared), released.clone()));
            }
        });
        Self { url, state, release, serving }
    }

    pub fn requests(&self) -> Vec<Request> {
        self.state.requests.lock().unwrap().clone()
    }

    /// The most that were under way at the same time.
    pub fn most(&self) -> usize {
        self.state.most.load(Ordering::Relaxed)
    }

    pub fn release(&self) {
        self.release.send(true).unwrap();
    }

    /// Until it has been sent so many.
    pub async fn has(&self, count: usize) -> Vec<Request> {
        let enough = async {
            while self.requests().len() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let came = tokio::time::timeout(Duration::from_secs(30), enough).await;
        let requests = self.requests();
        assert!(came.is_ok(), "{} of {count} requests came", requests.len());
        requests
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(mut stream: TcpStream, plan: fn(usize) -> Do, state: Arc<State>, mut released: watch::Receiver<bool>) {
    let Some(request) = read(&mut stream).await else { return };
    let now = state.under_way.fetch_add(1, Ordering::Relaxed) + 1;
    state.most.fetch_max(now, Ordering::Relaxed);
    let number = {
        let mut requests = state.requests.lock().unwrap();
        requests.push(request);
        requests.len() - 1
    };
    let mut more = String::new();
    let status = match plan(number) {
        Do::Answer(status) => status,
        Do::AskForTime(status, seconds) => {
            more = format!("retry-after: {seconds}\r\n");
            status
        }
        Do::Hold(status) => {
            released.wait_for(|released| *released).await.unwrap();
            status
        }
        Do::Ignore => {
            // Until the other side goes.
            let _ = stream.read(&mut [0; 1]).await;
            state.under_way.fetch_sub(1, Ordering::Relaxed);
            return;
        }
    };
    // Long enough for others to come meanwhile, if they may.
    tokio::time::sleep(Duration::from_millis(2)).await;
    state.under_way.fetch_sub(1, Ordering::Relaxed);
    let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 2\r\n{more}connection: close\r\n\r\nok");
    let _ = stream.write_all(answer.as_bytes()).await;
}

/// None for a connection that says nothing.
async fn read(stream: &mut TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        let read = stream.read(&mut chunk).await.ok().filter(|read| *read > 0)?;
        bytes.extend_from_slice(&chunk[..read]);
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let mut lines = head.lines();
        let line = lines.next().unwrap().to_owned();
        let headers: HashMap<String, String> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        if body.len() >= headers["content-length"].parse().unwrap() {
            return Some(Request { line, headers, body: body.to_owned() });
        }
    }
}
