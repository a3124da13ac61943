//! Export the chain: the tenant's receipts as they were sealed, with everything their links were made of.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Example, OperationSpec, Result, Role, Route, Scope, hex};
use waybill_store::effects::{Effect, position};
use waybill_store::{Ctx, Operation, Reach, Reply, Row, Tx, Value};

use crate::Settings;
use crate::receipts::ReceiptId;
use crate::receipts::chain::{Parties, Sealed};
use crate::sweeps::{Seal, content};

const LIMIT: i64 = 200;
const LIMIT_MAX: i64 = 500;
/// Receipts read at once. With as many of the largest more the answer still finds room at the door.
const READ_AT_ONCE: i64 = 50;
/// Where a receipt's content begins in a row.
const BODY_AT: usize = 11;
/// Of all tenants, looked at for those that are not sealed.
const UNSEALED_MAX: i64 = 1_000_000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportChain {
    /// The position of the last receipt you have; 0 for the beginning.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub after: i64,
    /// How many at most: 200 unless given, never more than 500.
    #[schemars(range(min = 1))]
    pub limit: Option<i64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Exported {
    /// In the order in which they were sealed; fewer than asked for where they are large. Go on behind the last until it is the head.
    pub receipts: Vec<Sealed>,
    /// The last position of the chain, at the time of this answer.
    pub head: i64,
    /// Receipts that were written and are not in the chain yet: those of the last few seconds, unless sealing is behind.
    pub unsealed: i64,
}

impl Operation for ExportChain {
    const SPEC: OperationSpec = OperationSpec {
        name: "export_chain",
        domain: "admin",
        route: Route::get("/admin/receipts/chain"),
        tool: false,
        roles: &[Role::Admin],
        scopes: &[Scope::AdminRead],
        title: "Export the chain of receipts",
        description: "Gives out the tenant's receipts in the order in which they were sealed, each with its link, so that \
                      anybody can check that none was altered, dropped or put in between. Receipts of the last few \
                      seconds may not have been sealed yet.",
        example: Example {
            arguments: r#"{"after": 0, "limit": 1}"#,
            answer: r#"{"receipts": [{"position": 1, "receipt_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e1f",
                "receipt_type": "task.assigned", "created_at": "2026-01-05T12:30:00.000000Z", "parents": [],
                "content_hash": "5d41402abc4b2a76b9719d911017c592ae1f3a9c0b7d4e6f8a2c4e6f8091a2b3",
                "parties_hash": "5d41402abc4b2a76b9719d911017c592ae1f3a9c0b7d4e6f8a2c4e6f8091a2b3",
                "link": "5d41402abc4b2a76b9719d911017c592ae1f3a9c0b7d4e6f8a2c4e6f8091a2b3",
                "salt": "5d41402abc4b2a76b9719d911017c592ae1f3a9c0b7d4e6f8a2c4e6f8091a2b3",
                "parties": {"from": "agent:alice", "to": "agent:alice"},
                "content": {"body": "{\"schema_version\":\"1\"}", "task_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e0f",
                "lease_id": null, "schedule_id": null, "instance": "waybill-1"}}], "head": 1, "unsealed": 0}"#,
        },
        ..OperationSpec::READ
    };
    /// How far sealing has come stands in a row that belongs to no tenant.
    const REACH: Reach = Reach::System;
    type Output = Exported;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Exported>> {
        // What can be read from the receipt itself is taken from there: a change of it must show.
        const PAGE: &str = "SELECT c.position, c.receipt_id, coalesce(r.receipt_type, a.receipt_type, c.receipt_type), \
            coalesce(r.parents, a.parents, c.parents), coalesce(r.created_at, a.created_at, c.created_at), \
            c.salt, c.content, c.parties, c.link, \
            coalesce(r.sender, a.sender), coalesce(r.addressee, a.addressee), coalesce(r.body, a.body), \
            coalesce(r.task_id, a.task_id), coalesce(r.lease_id, a.lease_id), \
            coalesce(r.schedule_id, a.schedule_id), coalesce(r.instance, a.instance) \
            FROM chain c LEFT JOIN receipts r ON r.tenant = $1 AND r.receipt_id = c.receipt_id \
            LEFT JOIN receipt_archive p ON p.tenant = $1 AND p.receipt_id = c.receipt_id \
            LEFT JOIN archived_receipts a ON a.tenant = $1 AND a.xact = p.xact AND a.seq = p.seq \
            WHERE c.tenant = $1 AND c.position > $2 ORDER BY c.position LIMIT $3";
        const HEAD: &str = "SELECT position FROM chain WHERE tenant = $1 ORDER BY position DESC LIMIT 1";
        // In the order of the feed, from the sealer's place on: what it costs is the sealer's backlog.
        const UNSEALED: &str = "SELECT count(*) FROM (SELECT tenant FROM receipts \
            WHERE (xact, seq) > ($1, $2) AND xact < $3 ORDER BY xact, seq LIMIT $4) AS unsealed WHERE unsealed.tenant = $5";
        if self.after < 0 || self.limit.is_some_and(|limit| limit < 1) {
            return Err(Error::invalid("after must be at least 0 and limit at least 1."));
        }
        let limit = self.limit.unwrap_or(LIMIT).min(LIMIT_MAX);
        let sealed = position(tx, Seal::NAME).await?;
        let behind = [sealed.xact, sealed.seq, i64::MAX, UNSEALED_MAX, ctx.caller.tenant.0].map(Value::from);
        let unsealed = tx.query_opt(UNSEALED, &behind).await?.map_or(Ok(0), |row| row.int(0))?;
        let tx = &mut *tx.as_tenant(ctx.caller.tenant);
        let bytes_max = ctx.settings::<Settings>().list_bytes_max;
        let (mut receipts, mut bytes, mut after) = (Vec::new(), 0, self.after);
        loop {
            let some = READ_AT_ONCE.min(limit - receipts.len() as i64);
            let rows = tx.query(PAGE, &[Value::from(after), Value::from(some)]).await?;
            for row in &rows {
                let sealed = link(row)?;
                after = sealed.position;
                bytes += row.text_opt(BODY_AT)?.map_or(0, str::len) as i64;
                receipts.push(sealed);
            }
            if (rows.len() as i64) < some || receipts.len() as i64 >= limit || bytes > bytes_max {
                break;
            }
        }
        let head = tx.query_opt(HEAD, &[]).await?.map_or(Ok(0), |row| row.int(0))?;
        Ok(Reply::Done(Exported { receipts, head, unsealed }))
    }
}

fn link(row: &Row) -> Result<Sealed> {
    let salt = row.bytes_opt(5)?.map(hex::encode);
    let present = salt.is_some() && row.text_opt(9)?.is_some();
    let parties = || -> Result<Parties> { Ok(Parties { from: row.text(9)?.to_owned(), to: row.text(10)?.to_owned() }) };
    Ok(Sealed {
        position: row.int(0)?,
        receipt_id: ReceiptId::from_slice(row.bytes(1)?)?,
        receipt_type: row.text(2)?.to_owned(),
        parents: row.bytes(3)?.chunks(16).map(ReceiptId::from_slice).collect::<Result<_>>()?,
        created_at: row.time(4)?,
        content_hash: hex::encode(row.bytes(6)?),
        parties_hash: hex::encode(row.bytes(7)?),
        link: hex::encode(row.bytes(8)?),
        salt,
        parties: present.then(parties).transpose()?,
        content: present.then(|| content(row, BODY_AT)).transpose()?,
    })
}
