//! The operations, one file each: what they may be given, and what the model says they answer.
//!
//! Predictions judge in the product's order: the form of the input first, then access, then state.

mod cancel_task;
mod create_task;
mod get_task;
mod list_tasks;

use proptest::prelude::*;
use proptest::strategy::Union;
use serde_json::Value as Json;
use waybill_kernel::Code;

use super::people::Who;
use super::reference::{Answer, World};

/// An operation of the product, by its name; its struct here; and how often it comes, compared with the others. A file
/// has `strategy(&World)`, and its struct `input()` and `predict(who, &mut World)`.
macro_rules! calls {
    ($($weight:literal $module:ident $name:ident),+ $(,)?) => {
        $(pub use $module::$name;)+

        #[derive(Clone, Debug)]
        pub enum Call {
            $($name($name)),+
        }

        impl Call {
            pub const NAMES: &'static [&'static str] = &[$(stringify!($module)),+];

            pub fn any(world: &World) -> BoxedStrategy<Call> {
                let of = [$(($weight, $module::strategy(world).prop_map(Call::$name).boxed())),+];
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

calls! {
    5 create_task CreateTask,
    2 get_task GetTask,
    4 list_tasks ListTasks,
    3 cancel_task CancelTask,
}

/// A task of whatever tenant and state, or one that was never made.
fn any_task(world: &World) -> std::ops::RangeInclusive<usize> {
    0..=world.tasks.len()
}
