//! The reservations of a project, as `file_reservations/{slug}` shows them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Error, Example, OperationSpec, Resource, Result, Route, Time, cursor};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use crate::acting::project;
use crate::reservations::{Reservation, reservation_columns};

const LIMIT: i64 = 100;
const LIMIT_MAX: i64 = 1_000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListFileReservations {
    /// The project's absolute path or slug.
    pub project_key: String,
    /// True unless given: without those that were released or have expired.
    pub active_only: Option<bool>,
    /// Only those that are exclusive, of the active ones.
    pub exclusive_only: Option<bool>,
    /// 100 unless given.
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<i64>,
    /// `next_cursor` of the page before, with the same filters.
    pub cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct FileReservationList {
    /// Newest first.
    pub file_reservations: Vec<Shown>,
    /// Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Shown {
    pub id: i64,
    pub agent: String,
    pub path_pattern: String,
    pub exclusive: bool,
    pub reason: String,
    pub active: bool,
    pub created_ts: Time,
    pub expires_ts: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub released_ts: Option<Time>,
}

impl Shown {
    pub(crate) fn new(held: Reservation, now: Time) -> Self {
        Self {
            id: held.id,
            active: held.is_active(now),
            agent: held.agent_name,
            path_pattern: held.path,
            exclusive: held.exclusive,
            reason: held.reason,
            created_ts: held.created_at,
            expires_ts: held.expires_at,
            released_ts: held.released_at,
        }
    }
}

impl Operation for ListFileReservations {
    const SPEC: OperationSpec = OperationSpec {
        name: "list_file_reservations",
        route: Route::get("/v1/mail/file_reservations"),
        resources: &[Resource {
            renamed: &[("slug", "project_key")],
            ..Resource::at(
                "resource://file_reservations/{slug}{?active_only,limit,cursor}",
                "file_reservations",
                "Who is working on which files.",
            )
        }],
        tool: false,
        title: "List reservations",
        description: "Who is working on which files of a project, newest first; with active_only false also what is over.",
        example: Example {
            arguments: r#"{"project_key": "data-projects-backend"}"#,
            answer: r#"{"file_reservations": [{"id": 7, "agent": "GreenCastle", "path_pattern": "src/api/*.rs",
                "exclusive": true, "reason": "FEAT-123", "active": true, "created_ts": "2026-01-05T12:30:00.000000Z",
                "expires_ts": "2026-01-05T13:30:00.000000Z"}]}"#,
        },
        ..super::READ
    };
    type Output = FileReservationList;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<FileReservationList>> {
        // What is active is few, and found without what is over. History is read along its own index.
        const ACTIVE: &str = concat!(
            "SELECT ",
            reservation_columns!(),
            " FROM mail_reservations r JOIN mail_agents a ON a.tenant = $1 AND a.agent = r.agent \
             WHERE r.tenant = $1 AND r.project = $2 AND r.released_at IS NULL AND r.expires_at > $3 AND r.reservation < $4 \
             AND r.exclusive >= $5 ORDER BY r.reservation DESC LIMIT $6"
        );
        const ALL: &str = concat!(
            "SELECT ",
            reservation_columns!(),
            " FROM mail_reservations r JOIN mail_agents a ON a.tenant = $1 AND a.agent = r.agent \
             WHERE r.tenant = $1 AND r.project = $2 AND r.reservation < $3 ORDER BY r.reservation DESC LIMIT $4"
        );
        let limit = self.limit.unwrap_or(LIMIT);
        if !(1..=LIMIT_MAX).contains(&limit) {
            return Err(Error::invalid(format!("limit must be from 1 to {LIMIT_MAX}.")));
        }
        let project = project(tx, &self.project_key).await?;
        let (active_only, exclusive_only) = (self.active_only.unwrap_or(true), self.exclusive_only.unwrap_or(false));
        if exclusive_only && !active_only {
            // What is over is long, and no index tells the two apart there.
            return Err(Error::invalid("exclusive_only is for active reservations."));
        }
        let tenant = ctx.caller.tenant.0.to_be_bytes();
        let id = project.id.to_be_bytes();
        let filters = [u8::from(active_only) | u8::from(exclusive_only) << 1];
        let scope: [&[u8]; 4] = [b"file_reservations", &tenant, &id, &filters];
        let before = match &self.cursor {
            Some(cursor) => {
                let bytes = cursor::decode(&scope, cursor)?;
                i64::from_be_bytes(bytes.try_into().map_err(|_| cursor::refused())?)
            }
            None => i64::MAX,
        };
        let more = limit + 1;
        let mut rows = match active_only {
            true => {
                let params = [project.id.into(), ctx.now.into(), before.into(), exclusive_only.into(), more.into()];
                tx.query(ACTIVE, &params).await?
            }
            false => tx.query(ALL, &[project.id.into(), Value::from(before), more.into()]).await?,
        };
        let has_more = rows.len() as i64 > limit;
        rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        let held = rows.iter().map(Reservation::read).collect::<Result<Vec<_>>>()?;
        let last = held.last().map(|held| held.id).filter(|_| has_more);
        let next_cursor = last.map(|id| cursor::encode(&scope, &id.to_be_bytes()));
        let file_reservations = held.into_iter().map(|held| Shown::new(held, ctx.now)).collect();
        Ok(Reply::Done(FileReservationList { file_reservations, next_cursor }))
    }
}
