//! Follow: a principal's receipts as they come. Each turn gives what there is after a position, or waits for it.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use waybill_kernel::{Caller, Error, Example, OperationSpec, PrincipalKind, Result, Role, Route, Scope};
use waybill_store::effects::Cursor;
use waybill_store::{Ctx, Event, Operation, Reply, Turn, Tx, Until, Wait};

use crate::actor::named;
use crate::receipts::inbox::{self, INBOX, Of, RECEIPT_AT};
use crate::receipts::{ReceiptId, ReceiptRecord, example_receipt};

/// Receipts of one turn …
const EVENTS_MAX: usize = 100;
/// … and bytes of them: a client that reads slowly leaves a turn in memory, and may have many streams.
const EVENTS_BYTES_MAX: usize = 256 << 10;
/// Receipts that are read at once. A turn may have room for a few alone.
const READ_AT_ONCE: i64 = 20;
/// After this long a receipt that an older transaction held back is looked for again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FollowReceipts {
    /// The kind of the addressee, with `principal_id`.
    pub principal_kind: Option<PrincipalKind>,
    /// Whose receipts; your own unless given. Only an admin may name another.
    pub principal_id: Option<String>,
    /// Begin after this receipt. Without it and without Last-Event-ID, with the next receipt that comes.
    pub since_receipt_id: Option<ReceiptId>,
    /// The id of the last event that was received, as browsers send it by themselves when they connect again.
    pub last_event_id: Option<String>,
    /// How long a turn waits; the door says it.
    #[serde(default)]
    #[schemars(skip)]
    pub wait_seconds: u32,
}

impl Operation for FollowReceipts {
    const SPEC: OperationSpec = OperationSpec {
        name: "follow_receipts",
        domain: "tasks",
        route: Route::get("/v1/events"),
        tool: false,
        roles: &[Role::Agent, Role::Worker, Role::Admin, Role::System],
        scopes: &[Scope::ReceiptsRead],
        title: "Follow receipts",
        description: "Receive the receipts addressed to you as they come, as server-sent events: `event: receipt`, `data` the \
                      receipt, `id` its position. Connect again with Last-Event-ID and nothing is missed or repeated, but \
                      what has been archived by then is not shown.",
        example: Example {
            arguments: r#"{"since_receipt_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e1f"}"#,
            answer: example_receipt!(""),
        },
        ..OperationSpec::READ
    };
    type Output = Turn;

    fn wait(&self, caller: &Caller) -> Option<Wait> {
        // What `run` refuses is not waited for.
        let (kind, id) = (self.principal_kind, self.principal_id.as_deref());
        let addressee = named(caller, kind, id, PrincipalKind::Agent).ok()?;
        Wait::up_to(self.wait_seconds, inbox::topic(caller.tenant, &addressee.to_string()))
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Turn>> {
        let addressee = inbox::whose(ctx, self.principal_kind, self.principal_id.as_deref())?;
        let scope: [&[u8]; 3] = [b"receipts", ctx.caller.tenant_id.as_bytes(), addressee.as_bytes()];
        let after = match (&self.last_event_id, self.since_receipt_id) {
            (Some(id), _) => Cursor::from_text(&scope, id)?,
            (None, Some(since)) => inbox::position_after(tx, Some(since), Of::Addressee(&addressee)).await?,
            (None, None) => {
                let position = latest(tx, &addressee).await?.to_text(&scope);
                return Ok(Reply::Done(Turn { events: Vec::new(), position }));
            }
        };
        let horizon = tx.horizon().await?;
        let (mut events, mut bytes, mut position) = (Vec::new(), 0, after);
        'turn: while events.len() < EVENTS_MAX {
            let page = INBOX.read_below(tx, horizon, position, READ_AT_ONCE, &[(&addressee).into()]).await?;
            for row in &page.rows {
                let receipt = ReceiptRecord::from_row(row, RECEIPT_AT)?;
                let data = serde_json::to_string(&receipt).map_err(Error::internal)?;
                position = Cursor { xact: row.int(0)?, seq: row.int(1)? };
                bytes += data.len();
                events.push(Event { id: position.to_text(&scope), kind: "receipt", data });
                if bytes >= EVENTS_BYTES_MAX {
                    break 'turn;
                }
            }
            if !page.more {
                break;
            }
        }
        let turn = Turn { events, position: position.to_text(&scope) };
        if !turn.events.is_empty() {
            return Ok(Reply::Done(turn));
        }
        let look = is_held_back(tx, &addressee, horizon).await?.then(|| ctx.now.after(LOOK_AGAIN));
        Ok(Reply::Empty { answer: turn, until: Until { look, ..Until::default() } })
    }
}

/// Behind everything that feeds give out by now.
async fn latest(tx: &mut Tx<'_>, addressee: &str) -> Result<Cursor> {
    const LATEST: &str = "SELECT xact, seq FROM receipts WHERE tenant = $1 AND addressee = $2 AND xact < $3 \
                          ORDER BY xact DESC, seq DESC LIMIT 1";
    let horizon = tx.horizon().await?;
    let row = tx.query_opt(LATEST, &[addressee.into(), horizon.into()]).await?;
    row.map_or(Ok(Cursor::START), |row| Ok(Cursor { xact: row.int(0)?, seq: row.int(1)? }))
}

/// Is there a receipt that is committed and was not below the horizon? The horizon is of before the page that did not
/// have it: one of after it might have passed the receipt meanwhile.
async fn is_held_back(tx: &mut Tx<'_>, addressee: &str, horizon: i64) -> Result<bool> {
    const HELD_BACK: &str = "SELECT 1 FROM receipts WHERE tenant = $1 AND addressee = $2 AND xact >= $3 LIMIT 1";
    Ok(tx.query_opt(HELD_BACK, &[addressee.into(), horizon.into()]).await?.is_some())
}
