//! How a tool is called over MCP's streamable HTTP: one POST per call, answered with JSON. Neither server needs a session.

use std::io::Write;
use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::wire::Wire;

const REVISION: &str = "2025-06-18";
/// A successful result says so in its first bytes or in its last; looking through all of it would cost the client more than
/// the server spends on the page.
const FIRST_BYTES: usize = 512;
const LAST_BYTES: usize = 32;
const SUCCESS: &[u8] = b"\"isError\":false";

/// Where tools are called.
#[derive(Clone)]
pub struct Endpoint {
    pub addr: SocketAddr,
    pub path: &'static str,
}

impl Endpoint {
    /// All of a request's head but the length of its body.
    fn head(&self, key: Option<&str>) -> String {
        let Self { addr, path } = self;
        let authorization = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
        format!(
            "POST {path} HTTP/1.1\r\nHost: {addr}\r\n{authorization}Content-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: {REVISION}\r\nContent-Length: "
        )
    }

    pub fn pen(&self, key: Option<&str>, tool: &str) -> Pen {
        let begin =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}","arguments":"#);
        Pen { head: self.head(key), begin, request: Vec::new() }
    }

    /// Calls once, on a connection of its own; what the tool has answered.
    pub async fn call(&self, key: Option<&str>, tool: &str, arguments: &Value) -> Result<Value> {
        let mut wire = Wire::connect(self.addr).await?;
        let status = wire.exchange(self.pen(key, tool).write(&arguments.to_string())).await?;
        let response = String::from_utf8_lossy(wire.response()).into_owned();
        let body = response.split_once("\r\n\r\n").context("no body")?.1;
        let mut answer: Value =
            serde_json::from_str(body).with_context(|| format!("{tool} answered {status}: {body}"))?;
        if status != 200 || answer["result"]["isError"] != json!(false) {
            bail!("{tool} answered {status}: {body}");
        }
        Ok(answer["result"]["structuredContent"].take())
    }
}

/// Writes calls of one tool under one key.
#[derive(Clone)]
pub struct Pen {
    head: String,
    begin: String,
    request: Vec<u8>,
}

impl Pen {
    pub fn write(&mut self, arguments: &str) -> &[u8] {
        let Self { head, begin, request } = self;
        let length = begin.len() + arguments.len() + "}}".len();
        request.clear();
        // Writing to memory does not fail.
        drop(write!(request, "{head}{length}\r\n\r\n{begin}{arguments}}}}}"));
        request
    }
}

/// Whether the tool did what it was called for: an error of a tool is answered with 200 as well.
pub fn is_success(status: u16, response: &[u8]) -> bool {
    let first = &response[..response.len().min(FIRST_BYTES)];
    let last = &response[response.len().saturating_sub(LAST_BYTES)..];
    let says = |part: &[u8]| part.windows(SUCCESS.len()).any(|window| window == SUCCESS);
    status == 200 && (says(first) || says(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_the_length_that_they_say() {
        let endpoint = Endpoint { addr: "127.0.0.1:1".parse().unwrap(), path: "/mcp/mail" };
        let mut pen = endpoint.pen(Some("k"), "fetch_inbox");
        for arguments in [r#"{"limit":1}"#, "{}"] {
            let text = String::from_utf8(pen.write(arguments).to_vec()).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.ends_with(&format!("Content-Length: {}", body.len())), "{head}");
            let call: Value = serde_json::from_str(body).unwrap();
            assert_eq!(call["params"]["name"], "fetch_inbox");
            assert_eq!(call["params"]["arguments"].to_string(), arguments);
        }
    }

    #[test]
    fn an_error_of_a_tool_is_no_success() {
        let long = "x".repeat(2_000);
        let ours = format!(r#"{{"result":{{"isError":false,"content":"{long}"}}}}"#);
        let theirs = format!(r#"{{"result":{{"content":"{long}","isError":false}}}}"#);
        assert!(is_success(200, ours.as_bytes()) && is_success(200, theirs.as_bytes()));
        assert!(!is_success(202, ours.as_bytes()));
        assert!(!is_success(200, ours.replace("false", "true").as_bytes()));
    }
}
