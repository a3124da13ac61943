//! Open obligations: what a principal has been promised or has promised and no receipt has ended yet, oldest first.
//!
//! Read from an index that holds the open ones alone: the cost is theirs, however long the ledger is. The state of tasks
//! is not asked. What is open is a state and no feed: whatever is committed is shown, and a cursor leads to the next page of
//! it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Example, OperationSpec, PrincipalKind, Result, Role, Route, Scope};
use waybill_store::{Ctx, Operation, Reply, Tx};

use super::get_config::{PRODUCT, VERSION};
use crate::receipts::inbox::{self, OPEN, Of, RECEIPT_AT};
use crate::receipts::{ReceiptId, ReceiptRecord};
use crate::relationship::Relationship;
use crate::{Process, Settings};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListOpenObligations {
    /// The kind of the principal, with `principal_id`.
    pub principal_kind: Option<PrincipalKind>,
    /// Whose; your own unless given. Only an admin may name another.
    pub principal_id: Option<String>,
    /// Only obligations after this one: `cursor` of the page before.
    pub since_receipt_id: Option<ReceiptId>,
    /// Obligations per page: 50 unless given, at most 200.
    #[schemars(range(min = 1))]
    pub limit: Option<i64>,
}

/// Exactly this: the protocol forbids anything more.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct OpenObligations {
    pub server: Server,
    pub relationship: Relationship,
    pub open_obligations: Vec<ReceiptRecord>,
    /// Give it back as `since_receipt_id` for the next page; null when there was nothing more.
    pub cursor: Option<ReceiptId>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline, deny_unknown_fields)]
pub struct Server {
    pub name: &'static str,
    pub version: &'static str,
    pub instance_id: String,
    /// In seconds.
    pub uptime: u64,
}

impl Operation for ListOpenObligations {
    const SPEC: OperationSpec = OperationSpec {
        name: "list_open_obligations",
        domain: "tasks",
        route: Route::get("/v1/obligations/open"),
        roles: &[Role::Agent, Role::Worker, Role::Admin, Role::System],
        scopes: &[Scope::ReceiptsRead],
        title: "List open obligations",
        description: "Read what is still open for you, oldest first: tasks you handed over that have neither been completed \
                      with their work findable, nor failed for good, nor been canceled. Call it when you start, to know \
                      where you stand. Pass cursor back as since_receipt_id for the next page.",
        example: Example {
            arguments: r#"{"limit": 50}"#,
            answer: r#"{"server": {"name": "waybill", "version": "0.3.0", "instance_id": "waybill-1", "uptime": 3600},
                "relationship": {"principal_kind": "agent", "principal_id": "alice",
                "first_seen_at": "2026-01-05T12:30:00.000000Z", "last_seen_at": "2026-01-05T12:30:04.250000Z",
                "sessions_count": 1}, "open_obligations": [{"receipt_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e1f",
                "receipt_type": "task.assigned", "created_at": "2026-01-05T12:30:00.000000Z",
                "from": {"kind": "agent", "id": "alice"}, "to": {"kind": "agent", "id": "alice"},
                "task_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e0f", "parents": [],
                "body": {"instructions": {"type": "report.render"}, "requirements": {"capabilities": ["pdf"]},
                "result_delivery": {"mode": "retrieve", "operation": "get_task"}, "timeouts": {"lease_ttl": 300},
                "schema_version": "1"}, "hash": "5d41402abc4b2a76b9719d911017c592ae1f3a9c0b7d4e6f8a2c4e6f8091a2b3",
                "asyncgate_instance": "waybill-1"}], "cursor": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e1f"}"#,
        },
        ..OperationSpec::READ
    };
    type Output = OpenObligations;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<OpenObligations>> {
        let (settings, process) = (ctx.settings::<Settings>(), ctx.settings::<Process>());
        let limit = inbox::page_size(settings, "limit", self.limit)?;
        let principal = inbox::whose(ctx, self.principal_kind, self.principal_id.as_deref())?;
        let after = inbox::position_after(tx, self.since_receipt_id, Of::Addressee(&principal)).await?;
        let relationship = Relationship::find(ctx, tx, &principal).await?;
        let page = OPEN.read_all(tx, after, limit, &[(&principal).into()]).await?;
        let open_obligations: Vec<ReceiptRecord> =
            page.rows.iter().map(|row| ReceiptRecord::from_row(row, RECEIPT_AT)).collect::<Result<_>>()?;
        // An admin that looks after somebody is not a visit of theirs.
        if principal == ctx.caller.principal.to_string() {
            process.saw(ctx.caller.tenant, &principal, ctx.now);
        }
        Ok(Reply::Done(OpenObligations {
            server: Server {
                name: PRODUCT,
                version: VERSION,
                instance_id: settings.instance_id.clone(),
                uptime: process.uptime_s(),
            },
            relationship,
            cursor: open_obligations.last().map(|receipt| receipt.receipt_id),
            open_obligations,
        }))
    }
}
