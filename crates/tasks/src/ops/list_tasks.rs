//! List: newest first, by pages whose cursors stay true while tasks come and change.
//!
//! Each page is read from the end of an index: (owner, status) or the primary key. An owner's tasks of every status are six
//! such ranges merged, so a page costs its own length and not the owner's history. What no index knows (a type, a
//! status of anybody's tasks) is looked for among so many tasks at a time; a page that found less says where to go on.
//! A page has a bound in bytes as well, which is known before its tasks are read.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::principal::forbidden;
use waybill_kernel::{Error, Example, OperationSpec, Principal, Resource, Result, Role, Route, Scope, cursor};
use waybill_store::{Ctx, Operation, Reply, Row, Tx, Value};

use crate::Settings;
use crate::rules::Status;
use crate::task::{TaskRecord, columns, example_task, task_with_result};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListTasks {
    /// Only tasks in this state.
    pub status: Option<Status>,
    /// Only tasks of this type.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Only tasks of this owner, as `agent:alice`. An agent sees its own tasks and no others.
    pub created_by: Option<Principal>,
    /// Tasks per page: 50 unless given, at most 200.
    #[schemars(range(min = 1))]
    pub limit: Option<i64>,
    /// `next_cursor` of the page before, with the same filters.
    pub cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct TaskList {
    /// Fewer than asked for, even none, where they are large or few of those looked at fit the filter: what counts is
    /// whether there is a next_cursor.
    pub tasks: Vec<TaskRecord>,
    /// Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl Operation for ListTasks {
    const SPEC: OperationSpec = OperationSpec {
        name: "list_tasks",
        domain: "tasks",
        route: Route::get("/v1/tasks"),
        resources: &[Resource::at("resource://tasks{?status,type,limit,cursor}", "tasks", "Your tasks, newest first.")],
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::TasksRead],
        title: "List tasks",
        description: "List your tasks, newest first, optionally only those of one status or type. Pass next_cursor back as \
                      cursor, with the same filters, for the next page.",
        example: Example {
            arguments: r#"{"status": "succeeded", "limit": 1}"#,
            answer: concat!(r#"{"tasks": ["#, example_task!(), r#"], "next_cursor": "AZjA3horfD2OT1prfI2eDw"}"#),
        },
        ..OperationSpec::READ
    };
    type Output = TaskList;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<TaskList>> {
        let settings = ctx.settings::<Settings>();
        let limit = self.limit.unwrap_or(settings.list_limit);
        if limit < 1 {
            return Err(Error::invalid("limit must be at least 1."));
        }
        let limit = limit.min(settings.list_limit_max);
        let owner = self.owner(ctx)?;
        let scope = self.scope(ctx, owner.as_deref());
        let scope: Vec<&[u8]> = scope.iter().map(Vec::as_slice).collect();
        let before = match &self.cursor {
            Some(cursor) => cursor::decode(&scope, cursor)?,
            // Above every id.
            None => vec![0xff; 16],
        };

        let mut range = Range { before, lowest: Vec::new() };
        if self.is_searched_for(owner.as_deref()) {
            range.lowest = self.lowest(tx, owner.as_deref(), &range, settings.list_scan_max.max(1)).await?;
        }
        // One more than a page: is there another?
        let sizes = self.select(tx, SIZES, owner.as_deref(), &range, limit + 1).await?;
        let fit = fitting(&sizes, limit, settings.list_bytes_max)?;
        let mut next = match sizes.len() > fit {
            true => sizes[fit - 1].bytes(0)?.to_vec(),
            // All there were among those looked at; behind them there may be more.
            false => range.lowest.clone(),
        };
        // Down to where the next page begins. On PostgreSQL some may have come into the filter since they were counted, or
        // gone out of it: none may be passed over or shown twice for that.
        let (page, room) = (Range { lowest: next.clone(), ..range }, fit.max(1));
        let mut rows = self.select(tx, RECORDS, owner.as_deref(), &page, room as i64 + 1).await?;
        if rows.len() > room {
            rows.truncate(room);
            next = rows[room - 1].bytes(0)?.to_vec();
        }
        let tasks = rows.iter().map(TaskRecord::from_row).collect::<Result<_>>()?;
        let next_cursor = (!next.is_empty()).then(|| cursor::encode(&scope, &next));
        Ok(Reply::Done(TaskList { tasks, next_cursor }))
    }
}

/// The tasks a page is made of: below `before`, and not below `lowest`.
struct Range {
    before: Vec<u8>,
    lowest: Vec<u8>,
}

/// How many of them a page has room for; always one.
fn fitting(sizes: &[Row], limit: i64, bytes_max: i64) -> Result<usize> {
    let mut bytes = 0_i64;
    for (count, row) in sizes.iter().take(limit as usize).enumerate() {
        bytes = bytes.saturating_add(row.int(1)?);
        if count > 0 && bytes > bytes_max {
            return Ok(count);
        }
    }
    Ok(sizes.len().min(limit as usize))
}

/// `$2` and `$5` are the range, `$3` a type or NULL, `$4` how many.
macro_rules! page {
    ($columns:expr, $filter:literal) => {
        concat!(
            "SELECT ",
            $columns,
            " ",
            task_with_result!(),
            " WHERE t.tenant = $1 AND t.task_id < $2 AND t.task_id >= $5 AND ($3 IS NULL OR t.type = $3)",
            $filter,
            " ORDER BY t.task_id DESC LIMIT $4"
        )
    };
}

/// The newest of one owner in one status; `$6` is the owner.
macro_rules! newest {
    ($status:literal) => {
        concat!(
            "SELECT * FROM (SELECT task_id FROM tasks WHERE tenant = $1 AND owner = $6 AND status = '",
            $status,
            "' AND task_id < $2 AND task_id >= $5 AND ($3 IS NULL OR type = $3) ORDER BY task_id DESC LIMIT $4) AS ",
            $status,
            "_tasks"
        )
    };
}

/// The newest of one owner, those of each status by its own range of the index.
macro_rules! newest_of_owner {
    () => {
        concat!(
            newest!("queued"),
            " UNION ALL ",
            newest!("leased"),
            " UNION ALL ",
            newest!("running"),
            " UNION ALL ",
            newest!("succeeded"),
            " UNION ALL ",
            newest!("failed"),
            " UNION ALL ",
            newest!("canceled")
        )
    };
}

macro_rules! page_of_owner {
    ($columns:expr) => {
        concat!(
            "SELECT ",
            $columns,
            " ",
            task_with_result!(),
            " WHERE t.tenant = $1 AND t.task_id IN (",
            newest_of_owner!(),
            ") ORDER BY t.task_id DESC LIMIT $4"
        )
    };
}

/// The bytes of what has no small bound of its own.
macro_rules! size {
    () => {
        "t.task_id, CAST(octet_length(t.payload) + coalesce(octet_length(r.result), 0) + coalesce(octet_length(r.error), 0) \
         + coalesce(octet_length(r.artifacts), 0) + coalesce(octet_length(p.progress), 0) AS BIGINT)"
    };
}

/// The rows before it are passed over in the index.
macro_rules! lowest {
    ($among:expr) => {
        concat!("SELECT task_id ", $among, " ORDER BY task_id DESC LIMIT 1 OFFSET $4 - 1")
    };
}

/// One question about the tasks of anybody, of a status, of an owner, of an owner and a status.
struct Texts {
    of_all: &'static str,
    of_status: &'static str,
    of_owner: &'static str,
    of_owner_and_status: &'static str,
}

const SIZES: &Texts = &Texts {
    of_all: page!(size!(), ""),
    of_status: page!(size!(), " AND t.status = $6"),
    of_owner: page_of_owner!(size!()),
    of_owner_and_status: page!(size!(), " AND t.owner = $6 AND t.status = $7"),
};

const RECORDS: &Texts = &Texts {
    of_all: page!(columns!(), ""),
    of_status: page!(columns!(), " AND t.status = $6"),
    of_owner: page_of_owner!(columns!()),
    of_owner_and_status: page!(columns!(), " AND t.owner = $6 AND t.status = $7"),
};

/// The last of so many (`$4`), of whatever type and, where no index knows it, status.
const LOWEST: &Texts = &Texts {
    of_all: lowest!("FROM tasks WHERE tenant = $1 AND task_id < $2 AND task_id >= $5 AND $3 IS NULL"),
    of_status: lowest!("FROM tasks WHERE tenant = $1 AND task_id < $2 AND task_id >= $5 AND $3 IS NULL AND $6 <> ''"),
    of_owner: lowest!(concat!("FROM (", newest_of_owner!(), ") AS of_owner")),
    of_owner_and_status: lowest!(
        "FROM tasks WHERE tenant = $1 AND task_id < $2 AND task_id >= $5 AND $3 IS NULL AND owner = $6 AND status = $7"
    ),
};

impl ListTasks {
    /// Whose tasks: the caller's own, or for admin and system whoever's they ask for.
    fn owner(&self, ctx: &Ctx<'_>) -> Result<Option<String>> {
        let asked = self.created_by.as_ref().map(Principal::to_string);
        if ctx.caller.sees_all_owners() {
            return Ok(asked);
        }
        let own = ctx.caller.principal.to_string();
        match asked {
            Some(asked) if asked != own => Err(forbidden(
                "Only an admin may list the tasks of another principal.",
                &[Role::Admin, Role::System],
                &ctx.caller.roles,
            )),
            _ => Ok(Some(own)),
        }
    }

    /// What a cursor of this list is only valid with.
    fn scope(&self, ctx: &Ctx<'_>, owner: Option<&str>) -> Vec<Vec<u8>> {
        let part = |text: Option<&str>| text.map_or_else(Vec::new, |text| [b"=", text.as_bytes()].concat());
        vec![
            b"list_tasks".to_vec(),
            ctx.caller.tenant_id.as_bytes().to_vec(),
            part(owner),
            part(self.status.map(Status::as_str)),
            part(self.kind.as_deref()),
        ]
    }

    /// No index knows what is asked for, so tasks are looked at that are not it.
    fn is_searched_for(&self, owner: Option<&str>) -> bool {
        self.kind.is_some() || (owner.is_none() && self.status.is_some())
    }

    /// The last of the tasks to look at; empty when there are not so many.
    async fn lowest(&self, tx: &mut Tx<'_>, owner: Option<&str>, range: &Range, scan_max: i64) -> Result<Vec<u8>> {
        let anything = ListTasks { status: self.status, kind: None, created_by: None, limit: None, cursor: None };
        let rows = anything.select(tx, LOWEST, owner, range, scan_max).await?;
        rows.first().map_or(Ok(Vec::new()), |row| row.bytes(0).map(<[u8]>::to_vec))
    }

    async fn select(
        &self,
        tx: &mut Tx<'_>,
        texts: &Texts,
        owner: Option<&str>,
        range: &Range,
        limit: i64,
    ) -> Result<Vec<Row>> {
        let mut params = vec![
            Value::from(&range.before[..]),
            Value::from(self.kind.as_deref()),
            Value::from(limit),
            Value::from(&range.lowest[..]),
        ];
        params.extend(owner.map(Value::from));
        params.extend(self.status.map(|status| Value::from(status.as_str())));
        let sql = match (owner, self.status) {
            (None, None) => texts.of_all,
            (None, Some(_)) => texts.of_status,
            (Some(_), None) => texts.of_owner,
            (Some(_), Some(_)) => texts.of_owner_and_status,
        };
        tx.query(sql, &params).await
    }
}
