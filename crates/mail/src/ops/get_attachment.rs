//! A file that came with a message, for the parties of the message. Large ones are given in pieces: an answer has a bound, and a
//! file may be larger.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Example, OperationSpec, Profile, Resource, Result, Role, Route, Scope, hex};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::ops::get_message::GetMessage;

/// Of one answer, decoded. An MCP answer holds them twice, and in base64.
const PIECE_BYTES_MAX: i64 = 2 << 20;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetAttachment {
    #[schemars(range(min = 1))]
    pub message_id: i64,
    /// Its place among the `attachments` of the message, from 0.
    #[schemars(range(min = 0))]
    pub position: i64,
    /// The project's absolute path or slug.
    pub project_key: String,
    /// As which agent. Left out, as any of yours.
    pub agent_name: Option<String>,
    /// From which byte on: `next_offset` of the answer before; 0 unless given.
    #[schemars(range(min = 0))]
    #[schemars(extend("x-rare" = true))]
    pub offset: Option<i64>,
    /// The agent's token, where another key has registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
}

/// A file, or 2 MiB of it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Content {
    pub name: String,
    pub media_type: String,
    /// Of the whole file.
    pub bytes: i64,
    /// Of the whole file.
    pub sha256: String,
    /// What there is from `offset` on, in base64.
    pub content_base64: String,
    /// Where the next piece begins; absent with the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_offset: Option<i64>,
}

impl Operation for GetAttachment {
    const SPEC: OperationSpec = OperationSpec {
        name: "get_attachment",
        domain: crate::NAME,
        route: Route::get("/v1/mail/messages/{message_id}/attachments/{position}"),
        resources: &[Resource {
            renamed: &[("project", "project_key"), ("agent", "agent_name")],
            ..Resource::at(
                "resource://attachment/{message_id}/{position}{?project,agent,offset}",
                "attachment",
                "A file of a message.",
            )
        }],
        profile: Profile::Full,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailRead],
        title: "Get an attachment",
        description: "A file that came with a message which an agent of yours has sent or got, 2 MiB at a time. `attachment:2` in its text is the picture at position 2.",
        example: Example {
            arguments: r#"{"message_id": 42, "position": 0, "project_key": "/data/projects/backend"}"#,
            answer: r#"{"name": "a.txt", "media_type": "text/plain", "bytes": 5,
                "sha256": "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824", "content_base64": "aGVsbG8="}"#,
        },
        ..OperationSpec::READ
    };
    type Output = Content;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Content>> {
        // Counted from 1, and the integers of `substr` have 32 bits.
        const PIECE: &str = "SELECT name, media_type, sha256, CAST(octet_length(content) AS BIGINT), \
            substr(content, CAST($4 AS INTEGER), CAST($5 AS INTEGER)) \
            FROM mail_attachments WHERE tenant = $1 AND message = $2 AND position = $3";
        let offset = self.offset.unwrap_or(0);
        if self.position < 0 || !(0..i64::from(i32::MAX)).contains(&offset) {
            return Err(Error::invalid(
                "position and offset must not be negative, and offset must be less than 2 GiB.",
            ));
        }
        self.message().shown(ctx, tx).await?;
        let params = [self.message_id.into(), self.position.into(), (offset + 1).into(), PIECE_BYTES_MAX.into()];
        let row = tx.query_opt(PIECE, &params).await?.ok_or_else(|| Error::not_found("attachment"))?;
        // SQLite has no part of what is empty.
        let (bytes, piece) = (row.int(3)?, row.bytes_opt(4)?.unwrap_or_default());
        let end = offset + piece.len() as i64;
        Ok(Reply::Done(Content {
            name: row.text(0)?.to_owned(),
            media_type: row.text(1)?.to_owned(),
            bytes,
            sha256: hex::encode(row.bytes(2)?),
            content_base64: STANDARD.encode(piece),
            next_offset: (end < bytes && !piece.is_empty()).then_some(end),
        }))
    }
}

impl GetAttachment {
    /// Whoever may read the message may read what came with it.
    fn message(&self) -> GetMessage {
        GetMessage {
            message_id: self.message_id,
            project_key: self.project_key.clone(),
            agent_name: self.agent_name.clone(),
            registration_token: self.registration_token.clone(),
        }
    }
}
