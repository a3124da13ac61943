use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use super::create_task::KINDS;
use super::{given, page};
use crate::model::names;
use crate::model::people::{ASKERS, OWNERS, Who, one_of};
use crate::model::reference::{Answer, Cursor, ListOf, World};
use crate::model::tasks::Task;

#[derive(Clone, Debug, Default)]
pub struct ListTasks {
    pub status: Option<&'static str>,
    pub kind: Option<&'static str>,
    pub created_by: Option<String>,
    pub limit: Option<usize>,
    pub cursor: Option<usize>,
}

/// A list from its beginning; the next page of one that was begun before, whatever has happened since; or a cursor
/// with a list that may be another.
pub fn strategy(world: &World) -> BoxedStrategy<(Who, ListTasks)> {
    let who = prop_oneof![1 => one_of(&ASKERS), 2 => one_of(&OWNERS)];
    let begun = (who, fresh()).boxed();
    if world.cursors.is_empty() {
        return begun;
    }
    let of: Vec<(Who, ListTasks)> =
        world.cursors.iter().enumerate().map(|(number, cursor)| next_page(number, cursor)).collect();
    let next = (select(of), limit()).prop_map(|((who, list), limit)| (who, ListTasks { limit, ..list }));
    // One more than there are: a cursor that nobody was given.
    let mixed = (begun.clone(), 0..=world.cursors.len())
        .prop_map(|((who, list), number)| (who, ListTasks { cursor: Some(number), ..list }));
    prop_oneof![3 => begun, 2 => next, 1 => mixed].boxed()
}

fn fresh() -> impl Strategy<Value = ListTasks> {
    let status = option::weighted(0.25, select(vec!["queued", "canceled", "running", "leased", "failed", "succeeded"]));
    let kind = option::weighted(0.3, select(KINDS.to_vec()));
    let created_by = option::weighted(0.3, one_of(&OWNERS).prop_map(Who::principal));
    (status, kind, created_by, limit()).prop_map(|(status, kind, created_by, limit)| ListTasks {
        status,
        kind,
        created_by,
        limit,
        cursor: None,
    })
}

fn limit() -> impl Strategy<Value = Option<usize>> {
    prop_oneof![10 => select(vec![Some(1), Some(2), Some(3)]), 2 => Just(None), 1 => Just(Some(0))]
}

/// By an admin, who may read on in any list of the tenant.
fn next_page(number: usize, cursor: &Cursor) -> (Who, ListTasks) {
    let ListOf { tenant, owner, status, kind } = cursor.list.clone();
    (Who::admin_of(tenant), ListTasks { status, kind, created_by: owner, limit: None, cursor: Some(number) })
}

impl ListTasks {
    pub fn input(&self) -> Json {
        given([
            ("status", self.status.map(Json::from)),
            ("type", self.kind.map(Json::from)),
            ("created_by", self.created_by.clone().map(Json::from)),
            ("limit", self.limit.map(Json::from)),
            ("cursor", self.cursor.map(names::cursor)),
        ])
    }

    pub fn predict(&self, who: Who, world: &mut World) -> Result<Answer, Code> {
        let limit = page(self.limit)?;
        let list = self.list_of(who)?;
        let before = match self.cursor.map(|number| world.cursors.get(number)) {
            None => world.tasks.len(),
            Some(Some(cursor)) if cursor.list == list => cursor.before,
            Some(_) => return Err(Code::InvalidCursor),
        };
        let found: Vec<usize> = (0..before).rev().filter(|number| list.holds(&world.tasks[*number])).collect();
        let page = &found[..found.len().min(limit)];
        let mut body = json!({ "tasks": page.iter().map(|number| world.record(*number)).collect::<Vec<_>>() });
        if found.len() > limit {
            body["next_cursor"] = names::cursor(world.cursors.len());
            world.cursors.push(Cursor { list, before: page[limit - 1] });
        }
        Ok(Answer::done(body))
    }

    /// An agent lists its own tasks, whether it says so or not.
    fn list_of(&self, who: Who) -> Result<ListOf, Code> {
        let owner = match (&self.created_by, who.is_admin()) {
            (asked, true) => asked.clone(),
            (Some(asked), false) if *asked != who.principal() => return Err(Code::Forbidden),
            (_, false) => Some(who.principal()),
        };
        Ok(ListOf { tenant: who.tenant(), owner, status: self.status, kind: self.kind })
    }
}

impl ListOf {
    fn holds(&self, task: &Task) -> bool {
        task.tenant() == self.tenant
            && self.owner.as_ref().is_none_or(|owner| *owner == task.owner.principal())
            && self.status.is_none_or(|status| status == task.status)
            && self.kind.is_none_or(|kind| kind == task.asked.kind)
    }
}
