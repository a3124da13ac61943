//! A mailbox by one of its views, for those who look and change nothing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, Resource, Result, Role, Route, Scope, Time};
use waybill_store::{Ctx, Operation, Reply, Tx};

use crate::Settings;
use crate::acting;
use crate::inbox::{self, Counts, MessageView};
use crate::pages::{self, LIMIT_MAX, LIMIT_USUAL, List, Page};
use crate::rules::message::page;

/// Which messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum View {
    /// What the agent has got.
    Inbox,
    /// What it has sent.
    Outbox,
    /// Both, the newest first.
    Mailbox,
    UrgentUnread,
    /// Those that ask for an acknowledgement it has not given.
    AckRequired,
    /// Of those, the ones that came before the time for it.
    AckOverdue,
    /// As ack-overdue, after `ttl_seconds`.
    AcksStale,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadMailbox {
    pub view: View,
    /// The project's absolute path or slug.
    pub project_key: String,
    /// Your agent's name.
    pub agent_name: String,
    /// Messages at most: 20 unless given, at most 1,000.
    #[schemars(range(min = 1))]
    pub limit: Option<i64>,
    /// Only those that came after this time.
    pub since_ts: Option<Time>,
    /// With inbox: only those of high or urgent importance.
    #[serde(default)]
    pub urgent_only: bool,
    /// With the text of each message.
    #[serde(default)]
    pub include_bodies: bool,
    /// With ack-overdue and acks-stale: after how long; half an hour unless given.
    #[schemars(range(min = 1))]
    pub ttl_seconds: Option<u32>,
    /// The agent's token, where another key has registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
}

/// A view of a mailbox.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Mailbox {
    /// The newest first.
    pub messages: Vec<MessageView>,
    /// There are more: a page ends at its limit, or at 2 MiB.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_more: bool,
    /// Of the whole inbox.
    pub counts: Counts,
}

/// The address of a view: it names the agent and the project, and the view is its own.
const fn view(template: &'static str, name: &'static str, description: &'static str) -> Resource {
    Resource {
        renamed: &[("agent", "agent_name"), ("project", "project_key")],
        ..Resource::at(template, name, description)
    }
}

impl Operation for ReadMailbox {
    const SPEC: OperationSpec = OperationSpec {
        name: "read_mailbox",
        domain: crate::NAME,
        route: Route::get("/v1/mail/mailbox/{view}"),
        resources: &[
            Resource {
                fixed: &[("view", r#""inbox""#)],
                ..view(
                    "resource://inbox/{agent}{?project,limit,since_ts,urgent_only,include_bodies}",
                    "inbox",
                    "What an agent has got, the newest first.",
                )
            },
            Resource {
                fixed: &[("view", r#""outbox""#)],
                ..view(
                    "resource://outbox/{agent}{?project,limit,since_ts,include_bodies}",
                    "outbox",
                    "What an agent has sent.",
                )
            },
            Resource {
                fixed: &[("view", r#""mailbox""#)],
                ..view(
                    "resource://mailbox/{agent}{?project,limit,since_ts,include_bodies}",
                    "mailbox",
                    "What it has got and sent.",
                )
            },
            Resource {
                fixed: &[("view", r#""urgent-unread""#)],
                ..view(
                    "resource://views/urgent-unread/{agent}{?project,limit}",
                    "urgent-unread",
                    "Urgent and not yet read.",
                )
            },
            Resource {
                fixed: &[("view", r#""ack-required""#)],
                ..view(
                    "resource://views/ack-required/{agent}{?project,limit}",
                    "ack-required",
                    "Waits to be acknowledged.",
                )
            },
            Resource {
                fixed: &[("view", r#""ack-overdue""#)],
                ..view(
                    "resource://views/ack-overdue/{agent}{?project,limit,ttl_seconds}",
                    "ack-overdue",
                    "Should have been acknowledged by now.",
                )
            },
            Resource {
                fixed: &[("view", r#""acks-stale""#)],
                ..view(
                    "resource://views/acks-stale/{agent}{?project,limit,ttl_seconds}",
                    "acks-stale",
                    "Has waited for an acknowledgement for longer than ttl_seconds.",
                )
            },
        ],
        tool: false,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailRead],
        title: "Read a mailbox",
        description: "An agent's inbox, outbox or both, or what is urgent, or what waits to be acknowledged. Changes nothing.",
        example: Example {
            arguments: r#"{"view": "urgent-unread", "project_key": "/data/projects/backend", "agent_name": "BlueLake"}"#,
            answer: r#"{"messages": [{"id": 42, "subject": "The login page", "from": "GreenCastle", "to": ["BlueLake"],
                "created_ts": "2026-01-05T12:30:00.000000Z", "importance": "urgent", "ack_required": true, "kind": "to"}],
                "counts": {"unread": 3, "urgent_unread": 1, "ack_open": 1}}"#,
        },
        ..OperationSpec::READ
    };
    type Output = Mailbox;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Mailbox>> {
        let limit = page(self.limit, LIMIT_USUAL, LIMIT_MAX)?;
        let project = acting::project(tx, &self.project_key).await?;
        let token = self.registration_token.as_deref();
        let agent = acting::act_as(ctx, tx, &project, &self.agent_name, token).await?.agent;
        let of = |list, before| Page { list, after: self.since_ts, before, limit, bodies: self.include_bodies };
        let overdue = match self.ttl_seconds {
            Some(seconds) => Time::from_micros(ctx.now.micros() - i64::from(seconds) * 1_000_000),
            None => inbox::overdue(ctx.now, ctx.settings::<Settings>()),
        };
        let shown = match self.view {
            View::Inbox if self.urgent_only => pages::read(tx, &project, &agent, of(List::Urgent, None)).await?,
            View::Inbox => pages::read(tx, &project, &agent, of(List::All, None)).await?,
            View::Outbox => pages::read_sent(tx, &project, &agent, of(List::All, None)).await?,
            View::UrgentUnread => pages::read(tx, &project, &agent, of(List::UrgentUnread, None)).await?,
            View::AckRequired => pages::read(tx, &project, &agent, of(List::AckOpen, None)).await?,
            View::AckOverdue | View::AcksStale => {
                pages::read(tx, &project, &agent, of(List::AckOpen, Some(overdue))).await?
            }
            View::Mailbox => pages::read_both(tx, &project, &agent, of(List::All, None)).await?,
        };
        let counts = inbox::counts(tx, &agent).await?;
        Ok(Reply::Done(Mailbox { messages: shown.messages, has_more: shown.has_more, counts }))
    }
}
