//! Fuzz targets of the readers at the doors.

use rmcp::model::ClientJsonRpcMessage;
use waybill_fuzz::{Target, feed};

use crate::address;
use crate::json::Checked;

#[test]
fn fuzz_json() {
    const SEEDS: &[&str] = &[
        "{}",
        "[1,-2.5e3,\"x\",null,true,false]",
        r#"{"type":"echo","payload":{"a":[{"b":"\u00e9\ud83d\ude00"}]},"priority":9007199254740993}"#,
    ];
    feed(Target { name: "json", seeds: SEEDS, read: |input| Checked::of(input).is_ok() });
}

/// The library's parser, behind the door's own reader: what the one has passed the other has to survive.
#[test]
fn fuzz_mcp_frame() {
    const SEEDS: &[&str] = &[
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"asyncgate.create_task","arguments":{"type":"echo","payload":{"a":1}},"_meta":{"x":1}}}"#,
        r#"{"jsonrpc":"2.0","id":"a","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"x"}}"#,
    ];
    let read =
        |input: &[u8]| Checked::of(input).is_ok() && serde_json::from_slice::<ClientJsonRpcMessage>(input).is_ok();
    feed(Target { name: "mcp_frame", seeds: SEEDS, read });
}

#[test]
fn fuzz_query_string() {
    const SEEDS: &[&str] = &["limit=50&cursor=00ff", "a=%41+b&c", "status=queued&type=%C3%A9"];
    let read = |input: &[u8]| address::query_fields(&String::from_utf8_lossy(input)).is_ok();
    feed(Target { name: "query_string", seeds: SEEDS, read });
}
