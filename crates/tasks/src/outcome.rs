//! How a lease is ended by its worker, and what its worker is told when it says so twice.

use waybill_kernel::idempotency::{Decision, Fingerprint, Found, OnMismatch, Policy, Presented, decide};
use waybill_kernel::{Error, Result, Time};
use waybill_store::{Ctx, Row, Statement, Tx, Value};

use crate::lease::Hold;
use crate::receipts::ReceiptId;
use crate::rules::Status;

/// The first complete or fail of a lease counts; the same again is answered the same, and another is a conflict.
const REPEAT_POLICY: Policy = Policy { on_mismatch: OnMismatch::Conflict, window: None };

/// Why a lease is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    Completed,
    Failed,
    Canceled,
    Expired,
}

impl EndReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            EndReason::Completed => "completed",
            EndReason::Failed => "failed",
            EndReason::Canceled => "canceled",
            EndReason::Expired => "expired",
        }
    }
}

/// Writes the lease's end into its history. `digest` is of what the worker said, for when it says it again.
pub(crate) fn end_lease<'a>(
    task_id: &'a [u8],
    epoch: i64,
    now: Time,
    reason: EndReason,
    digest: Option<&'a Fingerprint>,
    next_eligible_at: Option<Time>,
) -> Statement<'a> {
    const END: &str = "UPDATE leases SET ended_at = $4, end_reason = $5, digest = $6, next_eligible_at = $7 \
                       WHERE tenant = $1 AND task_id = $2 AND epoch = $3 AND ended_at IS NULL";
    let params = vec![
        Value::from(task_id),
        Value::from(epoch),
        Value::from(now),
        Value::from(reason.as_str()),
        Value::from(digest.map(|digest| digest.as_bytes().as_slice())),
        Value::from(next_eligible_at),
    ];
    (END, params)
}

/// The result of a task that came to nothing. `outcome` is failed or canceled.
pub(crate) fn unsuccessful<'a>(
    task_id: &'a [u8],
    outcome: Status,
    error: &'a str,
    receipt: &'a ReceiptId,
    now: Time,
) -> Statement<'a> {
    const RESULT: &str = "INSERT INTO results (tenant, task_id, outcome, error, located, receipt_id, completed_at) \
                          VALUES ($1, $2, $3, $4, 1, $5, $6)";
    let params = vec![
        Value::from(task_id),
        Value::from(outcome.as_str()),
        Value::from(error),
        Value::from(receipt.as_bytes()),
        Value::from(now),
    ];
    (RESULT, params)
}

/// What a lease that its worker has ended was ended with.
pub(crate) struct Ended {
    pub reason: String,
    pub next_eligible_at: Option<Time>,
    digest: Option<Fingerprint>,
    at: Time,
}

impl Ended {
    /// None when this worker never ended this lease: then its call is no repetition.
    pub async fn find(tx: &mut Tx<'_>, hold: &Hold<'_>) -> Result<Option<Self>> {
        const FIND: &str = "SELECT end_reason, next_eligible_at, digest, ended_at FROM leases \
            WHERE tenant = $1 AND task_id = $2 AND lease_id = $3 AND worker = $4 \
              AND end_reason IN ('completed', 'failed')";
        let params = [hold.task_id.as_bytes().into(), hold.lease_id.as_bytes().into(), hold.worker.into()];
        tx.query_opt(FIND, &params).await?.as_ref().map(Self::read).transpose()
    }

    fn read(row: &Row) -> Result<Self> {
        let digest = row.bytes_opt(2)?.map(<[u8; 32]>::try_from).transpose().map_err(Error::internal)?;
        Ok(Self {
            reason: row.text(0)?.to_owned(),
            next_eligible_at: row.time_opt(1)?,
            digest: digest.map(Fingerprint::from_bytes),
            at: row.time(3)?,
        })
    }

    /// The task was offered again and nothing has been recorded of it: the lease is as stale as any other.
    pub fn went_back_to_the_queue(&self) -> bool {
        self.next_eligible_at.is_some()
    }

    /// Is the call the same as the one that ended the lease?
    pub fn is_repeated_by(&self, ctx: &Ctx<'_>, reason: EndReason, digest: Fingerprint) -> bool {
        let found = Found { fingerprint: self.digest, at: self.at };
        let presented = Presented { fingerprint: Some(digest), now: ctx.now };
        self.reason == reason.as_str() && decide(Some(found), presented, REPEAT_POLICY) == Decision::Replay
    }
}
