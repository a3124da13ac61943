//! Bootstrap: the way agents started before open obligations could be asked for. Kept for those that still do it; fills the
//! inbox and leaves the other buckets empty.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use waybill_kernel::{Error, Example, OperationSpec, PrincipalKind, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Statement, Tx, Value};

use super::get_config::{PRODUCT, SPECIFICATION, VERSION};
use crate::receipts::inbox::{self, INBOX, Listed, Of};
use crate::receipts::{ReceiptId, ReceiptRecord, example_receipt};
use crate::relationship::Relationship;
use crate::{Process, Settings};

const INSTANCE_CHARS_MAX: usize = 255;
/// Marks sent at once.
const MARKS_MAX: usize = 25;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bootstrap {
    /// The kind of the principal, with its id.
    #[schemars(extend("deprecated" = true))]
    pub principal_kind: Option<PrincipalKind>,
    /// Who you are; your key says it anyway. Only an admin may name another.
    #[schemars(extend("deprecated" = true))]
    pub principal_id: Option<String>,
    /// The same as `principal_id`.
    #[schemars(extend("deprecated" = true))]
    pub agent_id: Option<String>,
    /// Which run of the agent this is: a new one begins a session.
    #[schemars(length(min = 1, max = 255))]
    pub agent_instance_id: Option<String>,
    /// Accepted and not used.
    #[schemars(extend("deprecated" = true))]
    pub agent_version: Option<String>,
    /// Accepted and not used.
    #[schemars(extend("deprecated" = true))]
    pub client_capabilities: Option<Json>,
    /// Only receipts after this one: `cursor.latest_receipt_id` of the call before.
    pub since_receipt_id: Option<ReceiptId>,
    /// Receipts at most: 50 unless given, never more than 200.
    #[schemars(range(min = 1))]
    pub max_items: Option<i64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Bootstrapped {
    pub server: Server,
    pub relationship: Relationship,
    pub attention: Attention,
    pub cursor: Latest,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Server {
    pub name: &'static str,
    pub version: &'static str,
    pub spec: &'static str,
    pub instance_id: String,
    /// In seconds.
    pub uptime: u64,
    pub environment: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Attention {
    pub inbox_receipts: Vec<ReceiptRecord>,
    /// Always empty, as all that follow: ask list_open_obligations.
    pub assigned_tasks: [(); 0],
    pub waiting_results: [(); 0],
    pub running_or_scheduled: [(); 0],
    pub anomalies: [(); 0],
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Latest {
    pub latest_receipt_id: Option<ReceiptId>,
}

impl Operation for Bootstrap {
    const SPEC: OperationSpec = OperationSpec {
        name: "bootstrap",
        domain: "tasks",
        route: Route::get("/v1/bootstrap"),
        repeatable: true,
        relieves: true,
        roles: &[Role::Agent, Role::Worker, Role::Admin, Role::System],
        scopes: &[Scope::ReceiptsRead],
        title: "Bootstrap (deprecated)",
        description: "Deprecated: use list_open_obligations. Reads the receipts addressed to you and marks them as delivered; \
                      its other buckets are always empty.",
        example: Example {
            arguments: r#"{"agent_instance_id": "run-42", "since_receipt_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e1f"}"#,
            answer: concat!(
                r#"{"server": {"name": "waybill", "version": "0.3.0", "spec": "asyncgate/0.3.0",
                "instance_id": "waybill-1", "uptime": 3600, "environment": "production"},
                "relationship": {"principal_kind": "agent", "principal_id": "alice",
                "first_seen_at": "2026-01-05T12:30:00.000000Z", "last_seen_at": "2026-01-05T12:30:04.250000Z",
                "sessions_count": 1},
                "attention": {"inbox_receipts": ["#,
                example_receipt!(""),
                r#"], "assigned_tasks": [], "waiting_results": [],
                "running_or_scheduled": [], "anomalies": []},
                "cursor": {"latest_receipt_id": "0198c0e0-3c4d-7e5f-8061-7c8d9e0f1a2b"}}"#
            ),
        },
        ..OperationSpec::WRITE
    };
    const SETTLES: bool = true;
    const SUCCESSOR: Option<&'static str> = Some("/v1/obligations/open");
    type Output = Bootstrapped;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Bootstrapped>> {
        tracing::warn!(principal = %ctx.caller.principal, "bootstrap is deprecated; open obligations take its place");
        let (settings, process) = (ctx.settings::<Settings>(), ctx.settings::<Process>());
        let max_items = inbox::page_size(settings, "max_items", self.max_items)?;
        let instance = self.instance()?;
        let principal = self.principal(ctx)?;
        let since = (self.since_receipt_id, Of::Addressee(&principal));
        let Listed { mut receipts, last } = inbox::list(tx, INBOX, since, max_items, &[(&principal).into()]).await?;
        // An admin that looks after somebody delivers nothing to them, and is no visit of theirs.
        let relationship = if principal == ctx.caller.principal.to_string() {
            mark_delivered(ctx, tx, &mut receipts).await?;
            Relationship::contact(ctx, tx, &principal, instance).await?
        } else {
            Relationship::find(ctx, tx, &principal).await?
        };
        let latest_receipt_id = last.or(self.since_receipt_id);
        Ok(Reply::Done(Bootstrapped {
            server: Server {
                name: PRODUCT,
                version: VERSION,
                spec: SPECIFICATION,
                instance_id: settings.instance_id.clone(),
                uptime: process.uptime_s(),
                environment: settings.environment.clone(),
            },
            relationship,
            attention: Attention {
                inbox_receipts: receipts,
                assigned_tasks: [],
                waiting_results: [],
                running_or_scheduled: [],
                anomalies: [],
            },
            cursor: Latest { latest_receipt_id },
        }))
    }
}

impl Bootstrap {
    fn instance(&self) -> Result<Option<&str>> {
        let instance = self.agent_instance_id.as_deref();
        if instance.is_some_and(|instance| instance.is_empty() || instance.chars().count() > INSTANCE_CHARS_MAX) {
            let message = format!("agent_instance_id must have 1 to {INSTANCE_CHARS_MAX} characters.");
            return Err(Error::invalid(message));
        }
        Ok(instance)
    }

    fn principal(&self, ctx: &Ctx<'_>) -> Result<String> {
        if self.principal_id.is_some() && self.agent_id.is_some() && self.principal_id != self.agent_id {
            return Err(Error::invalid("principal_id and agent_id name two principals."));
        }
        inbox::whose(ctx, self.principal_kind, self.principal_id.as_deref().or(self.agent_id.as_deref()))
    }
}

/// The first time only: a receipt is delivered once.
async fn mark_delivered(ctx: &Ctx<'_>, tx: &mut Tx<'_>, receipts: &mut [ReceiptRecord]) -> Result<()> {
    const MARK: &str =
        "UPDATE receipts SET delivered_at = $3 WHERE tenant = $1 AND receipt_id = $2 AND delivered_at IS NULL";
    let mut fresh: Vec<&mut ReceiptRecord> =
        receipts.iter_mut().filter(|receipt| receipt.delivered_at.is_none()).collect();
    // In one order for all: two that mark the same receipts wait for each other and do not lock each other out.
    fresh.sort_by_key(|receipt| receipt.receipt_id);
    for some in fresh.chunks_mut(MARKS_MAX) {
        let marks: Vec<Statement<'_>> = some
            .iter()
            .map(|receipt| (MARK, vec![Value::from(receipt.receipt_id.as_bytes()), Value::from(ctx.now)]))
            .collect();
        tx.execute_all(&marks).await?;
        some.iter_mut().for_each(|receipt| receipt.delivered_at = Some(ctx.now));
    }
    Ok(())
}
