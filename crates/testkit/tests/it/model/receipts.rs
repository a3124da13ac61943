//! The model's ledger: receipts in the order of their making.

use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use super::names;
use super::people::{Tenant, Who, split};
use super::reference::World;

/// Receipts per page, unless a caller says otherwise.

#[derive(Clone, Debug)]
pub struct Receipt {
    pub kind: &'static str,
    pub from: String,
    pub to: String,
    pub task: usize,
    pub lease: Option<usize>,
    pub parent: Option<usize>,
    pub body: Json,
    pub open: bool,
    pub step: usize,
    pub delivered: Option<usize>,
}

/// A receipt that is to be.
pub struct Proof<'a> {
    pub kind: &'static str,
    pub from: &'a str,
    pub to: &'a str,
    pub task: usize,
    pub lease: Option<usize>,
    pub parent: Option<usize>,
    pub body: Json,
}

impl World {
    /// A receipt, by its number.
    pub fn prove(&mut self, proof: Proof<'_>) -> usize {
        let Proof { kind, from, to, task, lease, parent, mut body } = proof;
        body["schema_version"] = json!("1");
        self.receipts.push(Receipt {
            kind,
            from: from.to_owned(),
            to: to.to_owned(),
            task,
            lease,
            parent,
            body,
            open: kind == "task.assigned",
            step: self.step(),
            delivered: None,
        });
        self.receipts.len() - 1
    }

    pub fn tenant_of(&self, receipt: usize) -> Tenant {
        self.tasks[self.receipts[receipt].task].tenant()
    }

    /// The receipt, if the tenant has it.
    pub fn receipt_of(&self, tenant: Tenant, number: usize) -> Option<&Receipt> {
        self.receipts.get(number).filter(|_| self.tenant_of(number) == tenant)
    }

    /// The numbers of a tenant's receipts that fit, after the given one, which must itself be of that list.
    pub fn receipts_after(
        &self,
        tenant: Tenant,
        since: Option<usize>,
        limit: usize,
        list: impl Fn(&Receipt) -> bool,
        fits: impl Fn(&Receipt) -> bool,
    ) -> Result<Vec<usize>, Code> {
        let first = match since {
            None => 0,
            Some(since) if self.receipt_of(tenant, since).is_some_and(&list) => since + 1,
            Some(_) => return Err(Code::InvalidCursor),
        };
        let fits = |number: &usize| self.receipt_of(tenant, *number).is_some_and(|one| list(one) && fits(one));
        Ok((first..self.receipts.len()).filter(fits).take(limit).collect())
    }

    /// The whole record, as everybody is shown it.
    pub fn receipt(&self, number: usize) -> Json {
        let receipt = &self.receipts[number];
        let party = |principal: &str| json!({ "kind": split(principal).0, "id": split(principal).1 });
        let mut record = json!({
            "receipt_id": names::receipt(number),
            "receipt_type": receipt.kind,
            "created_at": names::time(receipt.step, 0),
            "from": party(&receipt.from),
            "to": party(&receipt.to),
            "task_id": names::task(receipt.task),
            "parents": receipt.parent.into_iter().map(names::receipt).collect::<Vec<_>>(),
            "body": receipt.body,
            "hash": names::hash(number),
            "asyncgate_instance": "",
        });
        if let Some(lease) = receipt.lease {
            record["lease_id"] = names::lease(lease);
        }
        if let Some(step) = receipt.delivered {
            record["delivered_at"] = names::time(step, 0);
        }
        record
    }

    /// The ledger, oldest first.
    pub fn ledger(&self) -> Json {
        let receipts = self.receipts.iter().enumerate().map(|(number, receipt)| {
            json!({
                "receipt_id": names::receipt(number),
                "tenant": format!("{:?}", self.tenant_of(number)),
                "type": receipt.kind,
                "from": receipt.from,
                "to": receipt.to,
                "task_id": names::task(receipt.task),
                "lease_id": receipt.lease.map(names::lease),
                "parent": receipt.parent.map(names::receipt),
                "body": receipt.body,
                "open": receipt.open,
                "created_at": names::time(receipt.step, 0),
                "delivered_at": receipt.delivered.map(|step| names::time(step, 0)),
            })
        });
        receipts.collect()
    }

    /// Which of several leases is swept first is the store's affair: the receipts of this step stand in its order of
    /// tasks.
    pub fn reorder(&mut self, position: impl Fn(usize) -> usize) {
        let step = self.step();
        let first = self.receipts.iter().position(|receipt| receipt.step == step).unwrap_or(self.receipts.len());
        self.receipts[first..].sort_by_key(|receipt| position(receipt.task));
    }
}

/// Whose receipts a caller asks for: its own unless a principal is named, and another's for admins only.
pub fn whose(who: Who, named: Option<&String>) -> Result<String, Code> {
    match named {
        Some(named) if *named != who.principal() && !who.is_admin() => Err(Code::Forbidden),
        named => Ok(named.cloned().unwrap_or_else(|| who.principal())),
    }
}
