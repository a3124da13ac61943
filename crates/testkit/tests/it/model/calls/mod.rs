//! The operations, one file each: what they may be given, and what the model says they answer.
//!
//! Predictions judge in the product's order: the form of the input first, then access, then state.

mod ack_receipt;
mod bootstrap;
mod cancel_task;
mod complete;
mod create_task;
mod fail;
mod get_config;
mod get_receipt;
mod get_task;
mod held;
mod lease_next;
mod list_open_obligations;
mod list_receipts;
mod list_tasks;
mod renew_lease;
mod report_progress;

use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::Union;
use serde_json::{Value as Json, json};
use waybill_kernel::Code;

use super::people::{ALL, Tenant, Who, one_of};
use super::receipts::Receipt;
use super::reference::{Answer, World};

pub use complete::Work;

/// An operation of the product, by its name; its struct here; how often it comes, compared with the others; and what there
/// must be before it comes more than once in a while. A file has `strategy(&World)`, which says who calls and with what, and its struct `input()` and `predict(who, &mut World)`.
macro_rules! calls {
    ($($weight:literal $module:ident $name:ident $(once $some:ident)?),+ $(,)?) => {
        $(pub use $module::$name;)+

        #[derive(Clone, Debug)]
        pub enum Call {
            $($name($name)),+
        }

        impl Call {
            pub const NAMES: &'static [&'static str] = &[$(stringify!($module)),+];

            pub fn any(world: &World) -> BoxedStrategy<(Who, Call)> {
                let of = [$((
                    if false $(|| world.$some.is_empty())? { SELDOM } else { $weight },
                    $module::strategy(world).prop_map(|(who, call)| (who, Call::$name(call))).boxed()
                )),+];
                Union::new_weighted(of.to_vec()).boxed()
            }

            pub fn name(&self) -> &'static str {
                match self {
                    $(Call::$name(_) => stringify!($module)),+
                }
            }

            /// With names in the place of ids; see `names.rs`.
            pub fn input(&self) -> Json {
                match self {
                    $(Call::$name(call) => call.input()),+
                }
            }

            /// Changes the world as the operation would, unless it is refused.
            pub fn predict(&self, who: Who, world: &mut World) -> Result<Answer, Code> {
                match self {
                    $(Call::$name(call) => call.predict(who, world)),+
                }
            }
        }
    };
}

const SELDOM: u32 = 1;

calls! {
    24 create_task CreateTask,
    6 get_task GetTask once tasks,
    14 list_tasks ListTasks once tasks,
    6 cancel_task CancelTask once tasks,
    30 lease_next LeaseNext once tasks,
    12 renew_lease RenewLease once leases,
    12 report_progress ReportProgress once leases,
    20 complete Complete once leases,
    20 fail Fail once leases,
    8 list_open_obligations ListOpenObligations once receipts,
    10 list_receipts ListReceipts once receipts,
    5 get_receipt GetReceipt once receipts,
    8 ack_receipt AckReceipt once receipts,
    6 bootstrap Bootstrap once receipts,
    1 get_config GetConfig,
}

/// A task of whatever state and somebody of its tenant, more often than not; or one that was never made, or another
/// tenant's.
fn any_task(world: &World, some: &[Who]) -> BoxedStrategy<(Who, usize)> {
    near(some, world.tasks.len(), |number| world.tasks[number].tenant())
}

fn any_receipt(world: &World) -> BoxedStrategy<(Who, usize)> {
    near(&ALL, world.receipts.len(), |number| world.tenant_of(number))
}

/// Every receipt that is addressed to somebody, with its addressee.
fn inboxes(world: &World) -> Vec<(Who, usize)> {
    let addressed =
        |(number, receipt): (usize, &Receipt)| Some((Who::find(world.tenant_of(number), &receipt.to)?, number));
    world.receipts.iter().enumerate().filter_map(addressed).collect()
}

fn near(some: &[Who], count: usize, tenant: impl Fn(usize) -> Tenant) -> BoxedStrategy<(Who, usize)> {
    let any = (one_of(some), 0..=count);
    let of = |number| {
        let tenant = tenant(number);
        some.iter().filter(move |who| who.tenant() == tenant).map(move |who| (*who, number))
    };
    let near: Vec<(Who, usize)> = (0..count).flat_map(of).collect();
    if near.is_empty() { any.boxed() } else { prop_oneof![1 => any, 5 => select(near)].boxed() }
}

/// An input of nothing but what was chosen.
fn given(optional: impl IntoIterator<Item = (&'static str, Option<Json>)>) -> Json {
    let mut input = json!({});
    add(&mut input, optional);
    input
}

/// How many to a page; every list refuses a page of none.
fn page(limit: Option<usize>) -> Result<usize, Code> {
    const USUAL: usize = 50;
    match limit.unwrap_or(USUAL) {
        0 => Err(Code::InvalidRequest),
        limit => Ok(limit),
    }
}

/// Fields that a caller may leave out.
fn add(input: &mut Json, optional: impl IntoIterator<Item = (&'static str, Option<Json>)>) {
    for (name, value) in optional {
        if let Some(value) = value {
            input[name] = value;
        }
    }
}
