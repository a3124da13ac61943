//! List: newest first, by pages whose cursors stay true while tasks come and change.
//!
//! Each page is read from the end of an index: (owner, status), (status) or the primary key. An owner's tasks of every
//! status are six such ranges merged, so a page costs its own length and not the owner's history.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::principal::forbidden;
use waybill_kernel::{Door, Error, Method, Mode, OperationSpec, Principal, Result, Role, Scope, cursor};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use crate::Settings;
use crate::rules::Status;
use crate::task::{TaskId, TaskRecord, columns, task_with_result};

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
    pub tasks: Vec<TaskRecord>,
    /// Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl Operation for ListTasks {
    const SPEC: OperationSpec = OperationSpec {
        name: "list_tasks",
        door: Door::Tasks,
        method: Method::Get,
        path: "/v1/tasks",
        tool: true,
        mode: Mode::Read,
        destructive: false,
        repeatable: true,
        relieves: false,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::TasksRead],
        status: 200,
        title: "List tasks",
        description: "List your tasks, newest first, optionally only those of one status or type. Pass next_cursor back as \
                      cursor, with the same filters, for the next page.",
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

        // One more than a page: is there another?
        let rows = self.page(tx, owner.as_deref(), &before, limit + 1).await?;
        let more = rows.len() as i64 > limit;
        let tasks: Vec<TaskRecord> =
            rows.iter().take(limit as usize).map(TaskRecord::from_row).collect::<Result<_>>()?;
        let last: Option<TaskId> = tasks.last().map(|task| task.task_id);
        let next_cursor = last.filter(|_| more).map(|last| cursor::encode(&scope, last.as_bytes()));
        Ok(Reply::Done(TaskList { tasks, next_cursor }))
    }
}

/// One page of whole tasks. `$2` cursor, `$3` type or NULL, `$4` limit.
macro_rules! page {
    ($filter:literal) => {
        concat!(
            "SELECT ",
            columns!(),
            " ",
            task_with_result!(),
            " WHERE t.tenant = $1 AND t.task_id < $2 AND ($3 IS NULL OR t.type = $3)",
            $filter,
            " ORDER BY t.task_id DESC LIMIT $4"
        )
    };
}

/// The newest of one owner in one status; `$5` is the owner.
macro_rules! newest {
    ($status:literal) => {
        concat!(
            "SELECT * FROM (SELECT task_id FROM tasks WHERE tenant = $1 AND owner = $5 AND status = '",
            $status,
            "' AND task_id < $2 AND ($3 IS NULL OR type = $3) ORDER BY task_id DESC LIMIT $4) AS ",
            $status,
            "_tasks"
        )
    };
}

const OF_ALL: &str = page!("");
const OF_STATUS: &str = page!(" AND t.status = $5");
const OF_OWNER_AND_STATUS: &str = page!(" AND t.owner = $5 AND t.status = $6");
const OF_OWNER: &str = concat!(
    "SELECT ",
    columns!(),
    " ",
    task_with_result!(),
    " WHERE t.tenant = $1 AND t.task_id IN (",
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
    newest!("canceled"),
    ") ORDER BY t.task_id DESC LIMIT $4"
);

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

    async fn page(
        &self,
        tx: &mut Tx<'_>,
        owner: Option<&str>,
        before: &[u8],
        limit: i64,
    ) -> Result<Vec<waybill_store::Row>> {
        let mut params = vec![Value::from(before), Value::from(self.kind.as_deref()), Value::from(limit)];
        params.extend(owner.map(Value::from));
        params.extend(self.status.map(|status| Value::from(status.as_str())));
        let sql = match (owner, self.status) {
            (None, None) => OF_ALL,
            (None, Some(_)) => OF_STATUS,
            (Some(_), None) => OF_OWNER,
            (Some(_), Some(_)) => OF_OWNER_AND_STATUS,
        };
        tx.query(sql, &params).await
    }
}
