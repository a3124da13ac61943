//! `waybill mail register`, `send`, `reply` and `overseer`

use std::io::Read;

use clap::Args;
use serde_json::{Value as Json, json};
use waybill_kernel::{Code, Error, Result};
use waybill_mail::BODY_BYTES_MAX;
use waybill_mail::rules::message::too_large;

use super::{Actor, Project, call};
use crate::cli::Reach;
use crate::commands::session::Session;
use crate::output;

#[derive(Args)]
pub struct Register {
    /// The name to have, as in GreenCastle [default: one is made].
    #[arg(long, env = "AGENT_NAME", value_name = "NAME")]
    agent: Option<String>,
    /// The program that the agent is.
    #[arg(long, default_value = "waybill-cli")]
    program: String,
    /// The model that it runs on.
    #[arg(long, default_value = "none")]
    model: String,
    /// What it is working on.
    #[arg(long, value_name = "TEXT")]
    task: Option<String>,
    #[command(flatten)]
    project: Project,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Args)]
pub struct Send {
    /// Who gets it; may be given several times.
    #[arg(long, value_name = "NAME")]
    to: Vec<String>,
    #[command(flatten)]
    copies: Copies,
    #[arg(long)]
    subject: String,
    /// The thread it belongs to, as in FEAT-123.
    #[arg(long, value_name = "ID")]
    thread: Option<String>,
    #[command(flatten)]
    words: Words,
    #[command(flatten)]
    actor: Actor,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Args)]
pub struct Reply {
    /// The message that is answered.
    message_id: i64,
    /// Who gets it; may be given several times [default: whoever wrote the message].
    #[arg(long, value_name = "NAME")]
    to: Vec<String>,
    #[command(flatten)]
    copies: Copies,
    #[command(flatten)]
    words: Words,
    #[command(flatten)]
    actor: Actor,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Args)]
pub struct Overseer {
    /// Who gets it; may be given several times.
    #[arg(long, value_name = "NAME", required = true)]
    to: Vec<String>,
    #[arg(long)]
    subject: String,
    /// The thread it belongs to, as in FEAT-123.
    #[arg(long, value_name = "ID")]
    thread: Option<String>,
    /// The text, in Markdown; `-` for stdin [default: stdin].
    #[arg(value_name = "TEXT")]
    text: Option<String>,
    #[command(flatten)]
    project: Project,
    #[command(flatten)]
    reach: Reach,
}

/// Who else gets it.
#[derive(Args)]
struct Copies {
    #[arg(long, value_name = "NAME")]
    cc: Vec<String>,
    /// Hidden from the others.
    #[arg(long, value_name = "NAME")]
    bcc: Vec<String>,
}

/// What is written, and how it is meant.
#[derive(Args)]
struct Words {
    /// The text, in Markdown; `-` for stdin [default: stdin].
    #[arg(value_name = "TEXT")]
    text: Option<String>,
    /// low, normal, high or urgent [default: normal, or that of the message that is answered].
    #[arg(long)]
    importance: Option<String>,
    /// Ask for an acknowledgement.
    #[arg(long)]
    ack: bool,
    /// Makes the command safe to repeat within 24 hours.
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

pub async fn register(flags: Register) -> Result<()> {
    let Register { agent, program, model, task, project, reach } = flags;
    let project = project.key(&reach).await?;
    let session = Session::open(&reach).await?;
    let registered = async {
        // A path that is not known yet becomes a project; a slug must be one already.
        if project.starts_with('/') {
            session.call("mail.ensure_project", json!({ "human_key": project })).await?;
        }
        let agent = agent.filter(|name| !name.trim().is_empty());
        let input = given(json!({
            "project_key": project, "name": agent, "program": program, "model": model, "task_description": task,
        }));
        session.call("mail.register_agent", input).await
    };
    let answer = registered.await;
    session.close().await;
    let answer = answer?;
    output::answer(reach.json, &answer, &output::cell(&answer["name"]))
}

pub async fn send(flags: Send) -> Result<()> {
    let Send { to, copies, subject, thread, words, actor, reach } = flags;
    let input = given(json!({
        "project_key": actor.project.key(&reach).await?,
        "sender_name": actor.name()?,
        "sender_token": actor.token,
        "to": to, "cc": copies.cc, "bcc": copies.bcc,
        "subject": subject,
        "thread_id": thread,
        "body_md": words.body()?,
        "importance": words.importance,
        "ack_required": words.ack,
        "idempotency_key": words.idempotency_key,
    }));
    let answer = call(&reach, "mail.send_message", input).await?;
    output::answer(reach.json, &answer, &sent(&answer))
}

pub async fn reply(flags: Reply) -> Result<()> {
    let Reply { message_id, to, copies, words, actor, reach } = flags;
    let input = given(json!({
        "project_key": actor.project.key(&reach).await?,
        "sender_name": actor.name()?,
        "sender_token": actor.token,
        "message_id": message_id,
        "to": to, "cc": copies.cc, "bcc": copies.bcc,
        "body_md": words.body()?,
        "importance": words.importance,
        // What is not asked for anew is asked for as the message did.
        "ack_required": words.ack.then_some(true),
        "idempotency_key": words.idempotency_key,
    }));
    let answer = call(&reach, "mail.reply_message", input).await?;
    output::answer(reach.json, &answer, &sent(&answer))
}

pub async fn overseer(flags: Overseer) -> Result<()> {
    let Overseer { to, subject, thread, text, project, reach } = flags;
    let input = given(json!({
        "project_key": project.key(&reach).await?,
        "to": to,
        "subject": subject,
        "thread_id": thread,
        "body_md": body_of(text.as_deref())?,
    }));
    let answer = call(&reach, "mail.send_overseer_message", input).await?;
    let line = format!("Sent {} to {}.", output::cell(&answer["id"]), output::cell(&answer["to"]));
    output::answer(reach.json, &answer, &line)
}

fn sent(answer: &Json) -> String {
    let deliveries = answer["deliveries"].as_array().map_or(&[][..], Vec::as_slice);
    let one = |delivery: &Json| {
        let message = &delivery["payload"];
        let to: Vec<String> = ["to", "cc", "bcc"].iter().map(|list| output::cell(&message[list])).collect();
        format!("Sent {} to {}.", output::cell(&message["id"]), to.join(" ").trim())
    };
    deliveries.iter().map(one).collect::<Vec<_>>().join("\n")
}

impl Words {
    fn body(&self) -> Result<String> {
        body_of(self.text.as_deref())
    }
}

fn body_of(text: Option<&str>) -> Result<String> {
    match text {
        Some(text) if text != "-" => Ok(text.to_owned()),
        _ => from_reader(std::io::stdin().lock()),
    }
}

/// All of it, or an error: the beginning of a text would be sent as if it were the whole.
fn from_reader(reader: impl Read) -> Result<String> {
    let mut text = Vec::new();
    // What no server may be set to take need not be read to its end. How much this one takes it says itself.
    reader.take(BODY_BYTES_MAX as u64 + 1).read_to_end(&mut text).map_err(unreadable)?;
    if text.len() > BODY_BYTES_MAX {
        let message = format!("The text on stdin has more than {BODY_BYTES_MAX} bytes, and no server takes so much.");
        return Err(too_large(&message, BODY_BYTES_MAX));
    }
    String::from_utf8(text).map_err(unreadable)
}

fn unreadable(cause: impl std::fmt::Display) -> Error {
    Error::new(Code::InvalidRequest, "The text on stdin cannot be read.").because(cause)
}

/// Without what was not said.
fn given(mut input: Json) -> Json {
    if let Some(fields) = input.as_object_mut() {
        fields.retain(|_, value| !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty()));
    }
    input
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_said_is_left_out() {
        let input = given(json!({ "to": ["A"], "cc": [], "thread_id": null, "ack_required": false }));
        assert_eq!(input, json!({ "to": ["A"], "ack_required": false }));
    }

    #[test]
    fn a_text_comes_from_stdin_whole_or_not_at_all() {
        assert_eq!(from_reader(&b"hello\n"[..]).unwrap(), "hello\n");
        assert_eq!(from_reader(&b"\xff"[..]).unwrap_err().code(), Code::InvalidRequest);
        // More than a server takes that was not told otherwise, and as much as one can be told to take.
        for bytes in [3 << 20, BODY_BYTES_MAX] {
            assert_eq!(from_reader(std::io::repeat(b'x').take(bytes as u64)).unwrap().len(), bytes);
        }
        assert_eq!(from_reader(std::io::repeat(b'x')).unwrap_err().code(), Code::PayloadTooLarge);
    }

    #[test]
    fn what_was_sent_is_told_by_project() {
        let payload = json!({ "id": 7, "to": ["BlueLake"], "cc": ["RedFox"], "bcc": [] });
        let answer = json!({ "deliveries": [{ "project": "/x", "payload": payload }] });
        assert_eq!(sent(&answer), "Sent 7 to BlueLake RedFox.");
        assert_eq!(sent(&json!({})), "");
    }
}
