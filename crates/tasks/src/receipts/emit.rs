//! Writing receipts: the rows, their links, and the obligations they end.

use std::borrow::Cow;

use serde_json::{Value as Json, json};
use waybill_kernel::id::{Uuid, digest_id_near};
use waybill_kernel::{Code, Error, Result};
use waybill_store::{Ctx, Statement, Stored, Tx, Value};

use super::{ReceiptId, ReceiptType, SYSTEM, archive, inbox, written};
use crate::Settings;
use crate::lease::LeaseId;
use crate::task::TaskId;

pub struct Receipt<'a> {
    pub id: ReceiptId,
    pub kind: ReceiptType,
    pub from: &'a str,
    pub to: &'a str,
    pub task_id: Option<TaskId>,
    pub lease_id: Option<LeaseId>,
    pub schedule_id: Option<&'a str>,
    pub parents: &'a [ReceiptId],
    /// It would end an obligation but may not, because it does not say where the work is: the one receipt of an ending
    /// type that is stored without parents.
    pub unlocated: bool,
    pub body: Body,
}

/// What a receipt says.
pub enum Body {
    Tree(Json),
    /// By whoever knows its shape: building a tree of it to be written once costs more than all the rest of a receipt. As it
    /// is stored, with [`SCHEMA_VERSION`].
    Text(String),
}

impl From<Json> for Body {
    fn from(tree: Json) -> Self {
        Self::Tree(tree)
    }
}

/// In every body, by the name `schema_version`.
pub const SCHEMA_VERSION: &str = "1";

/// The id of a receipt that must exist only once. A second one with the same parts has the same id, and the unique index
/// on ids keeps it out. `near` is what the receipt is about: its time comes first in the id.
pub fn keyed_id(kind: ReceiptType, near: &Uuid, parts: &[&[u8]]) -> ReceiptId {
    ReceiptId(digest_id_near(near, &[&[kind.as_str().as_bytes()], parts].concat()))
}

/// Writes one receipt; see [`emit_all`].
pub async fn emit(tx: &mut Tx<'_>, ctx: &Ctx<'_>, receipt: Receipt<'_>) -> Result<()> {
    emit_all(tx, ctx, Vec::new(), &[receipt]).await
}

/// Writes up to two receipts with their links, ends the obligations they end, and runs `others` with them. The ledger has
/// them in the order given: what follows from a receipt stands behind it. What is wrong with them may show only when the
/// transaction is committed.
///
/// # Contract
/// Parents are of the caller's own tenant and known to exist, but for those of a receipt that ends an obligation. Of these
/// one at least must be what it ends, and the others must exist: that is checked here.
pub async fn emit_all(
    tx: &mut Tx<'_>,
    ctx: &Ctx<'_>,
    others: Vec<Statement<'_>>,
    receipts: &[Receipt<'_>],
) -> Result<()> {
    let settings = ctx.settings::<Settings>();
    let mut texts = Vec::with_capacity(receipts.len());
    for receipt in receipts {
        texts.push((receipt.checked_body(settings)?, receipt.parents_bytes()));
    }
    tx.add(Stored::Rows, texts.iter().map(|(body, _)| body.len()).sum());
    let mut statements = others;
    let rows =
        receipts.iter().zip(&texts).flat_map(|(receipt, (body, parents))| receipt.row(ctx, settings, body, parents));
    match receipts.len() {
        0 => {}
        1 => statements.push((INSERT, rows.collect())),
        // In one statement, which numbers its rows in their order; statements that go together have none.
        2 => statements.push((INSERT_TWO, rows.collect())),
        more => return Err(Error::internal(format!("{more} receipts at once"))),
    }
    let mut endings = Vec::new();
    for receipt in receipts {
        wake(tx, ctx, receipt);
        statements.extend(receipt.parents.iter().map(|parent| (LINK, receipt.link(parent))));
        if let Some(ended) = receipt.kind.ends().filter(|_| !receipt.unlocated) {
            for parent in receipt.parents {
                endings.push(Ending { at: statements.len(), by: receipt.id, parent: *parent });
                statements.push((END, vec![parent.as_bytes().into(), ended.as_str().into()]));
            }
        }
    }
    if receipts.iter().all(|receipt| !receipt.must_end() || receipt.parents.len() == 1) {
        let demanded: Vec<usize> = endings.iter().map(|ending| ending.at).collect();
        return tx.conclude(&statements, &demanded, nothing_to_end).await;
    }
    let written = tx.execute_together(&statements).await?;
    check_parents(tx, receipts, &endings, &written).await
}

/// A statement that may end an obligation.
struct Ending {
    at: usize,
    by: ReceiptId,
    parent: ReceiptId,
}

/// With several parents one that is ended is enough, and the others must only be there.
async fn check_parents(tx: &mut Tx<'_>, receipts: &[Receipt<'_>], endings: &[Ending], written: &[u64]) -> Result<()> {
    for receipt in receipts.iter().filter(|receipt| receipt.must_end()) {
        let own = || endings.iter().filter(|ending| ending.by == receipt.id);
        if own().all(|ending| written[ending.at] == 0) {
            return Err(nothing_to_end());
        }
        for Ending { parent, .. } in own().filter(|ending| written[ending.at] == 0) {
            if archive::locate(tx, *parent).await?.is_none() {
                return Err(Error::new(Code::ParentNotFound, format!("There is no receipt {parent} to be a parent.")));
            }
        }
    }
    Ok(())
}

fn nothing_to_end() -> Error {
    Error::new(Code::ParentNotFound, "No parent of the receipt is an open obligation that it could end.")
}

/// Writes a receipt whose id is of [`keyed_id`], unless it is there already: of several that write the same one, one is
/// told that it has.
///
/// # Contract
/// The receipt ends no obligation.
pub async fn emit_once(tx: &mut Tx<'_>, ctx: &Ctx<'_>, receipt: Receipt<'_>) -> Result<bool> {
    const INSERT_ONCE: &str = concat!(insert!(), " ON CONFLICT (tenant, receipt_id) DO NOTHING");
    assert!(receipt.kind.ends().is_none(), "{} ends an obligation", receipt.kind.as_str());
    let settings = ctx.settings::<Settings>();
    let (body, parents) = (receipt.checked_body(settings)?, receipt.parents_bytes());
    if tx.execute(INSERT_ONCE, &receipt.row(ctx, settings, &body, &parents)).await? == 0 {
        return Ok(false);
    }
    // The unique index knows the ledger alone. Looked at after the insert: one that the archive took before it is seen now.
    if archive::has(tx, receipt.id).await? {
        tx.execute(UNDO, &[receipt.id.as_bytes().into()]).await?;
        return Ok(false);
    }
    tx.add(Stored::Rows, body.len());
    let links: Vec<Statement<'_>> = receipt.parents.iter().map(|parent| (LINK, receipt.link(parent))).collect();
    tx.execute_all(&links).await?;
    wake(tx, ctx, &receipt);
    Ok(true)
}

macro_rules! insert {
    () => {
        "INSERT INTO receipts (tenant, receipt_id, receipt_type, sender, addressee, task_id, lease_id, schedule_id, \
         parents, body, instance, open, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
    };
}
use insert;

/// Those who follow the addressee's receipts, and whoever acts on all. A sweep acts for the tenant of each row, not for its
/// caller's.
fn wake(tx: &mut Tx<'_>, ctx: &Ctx<'_>, receipt: &Receipt<'_>) {
    let tenant = tx.tenant().unwrap_or(ctx.caller.tenant);
    tx.wake(inbox::topic(tenant, receipt.to), u32::MAX);
    tx.wake(written(), u32::MAX);
}

const INSERT: &str = insert!();
const INSERT_TWO: &str = concat!(insert!(), ", ($1, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25)");
const UNDO: &str = "DELETE FROM receipts WHERE tenant = $1 AND receipt_id = $2";
const LINK: &str = "INSERT INTO receipt_parents (tenant, parent_id, child_id, child_type) VALUES ($1, $2, $3, $4)";
/// Not `open = 1`: PostgreSQL would take that as an invitation to look through all open obligations of the tenant.
const END: &str =
    "UPDATE receipts SET open = 0 WHERE tenant = $1 AND receipt_id = $2 AND receipt_type = $3 AND open > 0";

impl<'a> Receipt<'a> {
    /// Tells the owner that a task is over and what came of it. Its parent is the receipt that ended the task.
    pub(crate) fn result_ready(
        id: ReceiptId,
        task_id: TaskId,
        owner: &'a str,
        parents: &'a [ReceiptId],
        body: Json,
    ) -> Self {
        Self {
            id,
            kind: ReceiptType::TaskResultReady,
            from: SYSTEM,
            to: owner,
            task_id: Some(task_id),
            lease_id: None,
            schedule_id: None,
            parents,
            unlocated: false,
            body: body.into(),
        }
    }
}

impl Receipt<'_> {
    fn must_end(&self) -> bool {
        self.kind.ends().is_some() && !self.unlocated
    }

    /// The body's text, if the receipt may be written at all.
    fn checked_body(&self, settings: &Settings) -> Result<Cow<'_, str>> {
        if self.must_end() && self.parents.is_empty() {
            return Err(Error::new(Code::ParentRequired, Code::ParentRequired.entry().title));
        }
        if self.parents.len() > settings.receipt_parents_max {
            let max = settings.receipt_parents_max;
            let message = format!("The receipt has {} parents; at most {max} are allowed.", self.parents.len());
            return Err(Error::new(Code::ReceiptTooLarge, message).with("limit", max));
        }
        let body = match &self.body {
            Body::Tree(tree) => Cow::Owned(body_text(tree)),
            Body::Text(text) => Cow::Borrowed(text.as_str()),
        };
        let max = settings.receipt_body_bytes_max;
        if body.len() > max {
            let message = format!("The receipt's body has {} bytes; at most {max} are allowed.", body.len());
            return Err(Error::new(Code::ReceiptTooLarge, message).with("limit_bytes", max));
        }
        Ok(body)
    }

    fn parents_bytes(&self) -> Vec<u8> {
        self.parents.iter().flat_map(|parent| parent.as_bytes().iter().copied()).collect()
    }

    fn row<'a>(&'a self, ctx: &Ctx<'_>, settings: &'a Settings, body: &'a str, parents: &'a [u8]) -> Vec<Value<'a>> {
        vec![
            Value::from(self.id.as_bytes()),
            Value::from(self.kind.as_str()),
            Value::from(self.from),
            Value::from(self.to),
            Value::from(self.task_id.as_ref().map(TaskId::as_bytes)),
            Value::from(self.lease_id.as_ref().map(LeaseId::as_bytes)),
            Value::from(self.schedule_id),
            Value::from(parents),
            Value::from(body),
            Value::from(&settings.instance_id),
            Value::from(self.kind.is_obligation()),
            Value::from(ctx.now),
        ]
    }

    fn link<'a>(&'a self, parent: &'a ReceiptId) -> Vec<Value<'a>> {
        vec![parent.as_bytes().into(), self.id.as_bytes().into(), self.kind.as_str().into()]
    }
}

/// Whether a body fits, for those who want to know before they write anything. `what` begins the refusal.
pub(crate) fn check_body(settings: &Settings, what: &str, body: &Json) -> Result<()> {
    let (bytes, max) = (body_text(body).len(), settings.receipt_body_bytes_max);
    if bytes <= max {
        return Ok(());
    }
    let message = format!("{what} a receipt of {bytes} bytes; at most {max} are allowed.");
    Err(Error::new(Code::ReceiptTooLarge, message).with("limit_bytes", max))
}

/// What a receipt will carry, read. It is refused by its length before a tree is built of it.
pub(crate) fn tree(settings: &Settings, what: &str, given: &waybill_kernel::Json) -> Result<Json> {
    let (bytes, max) = (given.as_str().len(), settings.receipt_body_bytes_max);
    if bytes > max {
        let message = format!("{what} a receipt of more than {bytes} bytes; at most {max} are allowed.");
        return Err(Error::new(Code::ReceiptTooLarge, message).with("limit_bytes", max));
    }
    serde_json::from_str(given.as_str()).map_err(Error::internal)
}

/// As it is stored: with its version, compact.
pub(crate) fn body_text(body: &Json) -> String {
    const VERSION: &str = "schema_version";
    match body.as_object() {
        // Nearly always: the version goes behind the rest, and nothing is copied for it.
        Some(fields) if !fields.is_empty() && !fields.contains_key(VERSION) => {
            let mut text = body.to_string();
            text.pop();
            text.push_str(&format!(",\"{VERSION}\":\"{SCHEMA_VERSION}\"}}"));
            text
        }
        _ => {
            let mut body = body.clone();
            body[VERSION] = json!(SCHEMA_VERSION);
            body.to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_body_says_its_version_once() {
        for (body, text) in [
            (json!({}), r#"{"schema_version":"1"}"#),
            (json!({ "b": [1, null], "a": "x" }), r#"{"b":[1,null],"a":"x","schema_version":"1"}"#),
            (json!({ "schema_version": "7", "a": 1 }), r#"{"schema_version":"1","a":1}"#),
        ] {
            assert_eq!(body_text(&body), text);
        }
    }
}
