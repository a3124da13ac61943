//! The model: what there is, and what each step makes of it. No ids, no SQL, no clock; tasks, leases and receipts are
//! numbered in the order of their making, and time is what the steps before have let pass.

use std::fmt;

use proptest::prelude::*;
use proptest_state_machine::ReferenceStateMachine;
use serde_json::Value as Json;
use waybill_kernel::Code;

use super::calls::Call;
use super::names;
use super::people::{Tenant, Who};
use super::receipts::Receipt;
use super::tasks::{Lease, Task};

/// Every wait is whole seconds, and time passes by whole seconds and this: what is due and what is not is never a
/// matter of the microseconds that the calls themselves take.
pub const PASS_FRACTION_MS: u64 = 10;

#[derive(Clone, Debug)]
pub enum Transition {
    /// So many seconds go by, and a moment.
    Pass(u64),
    /// Leases that ran out are looked for.
    Sweep,
    Call(Who, Call),
}

impl fmt::Display for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Transition::Pass(seconds) => write!(f, "{seconds} s pass"),
            Transition::Sweep => write!(f, "the sweep of leases"),
            Transition::Call(who, call) => write!(f, "{who:?} {} {}", call.name(), call.input()),
        }
    }
}

/// What the last step is answered with.
#[derive(Clone, Debug)]
pub enum Answer {
    Nothing,
    Refused(Code),
    Given { body: Json, replay: bool },
}

impl Answer {
    pub fn done(body: Json) -> Self {
        Answer::Given { body, replay: false }
    }

    pub fn again(body: Json) -> Self {
        Answer::Given { body, replay: true }
    }
}

/// So many seconds after a step.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub step: usize,
    pub plus_s: i64,
}

impl Moment {
    pub fn name(self) -> Json {
        names::time(self.step, self.plus_s)
    }
}

#[derive(Clone, Debug)]
pub struct World {
    pub tasks: Vec<Task>,
    pub leases: Vec<Lease>,
    pub receipts: Vec<Receipt>,
    pub cursors: Vec<Cursor>,
    pub visitors: Vec<Visitor>,
    /// When each step was taken, this one included, in milliseconds.
    clock: Vec<u64>,
    /// When the next one will be.
    next_ms: u64,
    pub answer: Answer,
}

/// A page was given that ended before this task, and more followed.
#[derive(Clone, Debug)]
pub struct Cursor {
    pub list: ListOf,
    pub before: usize,
}

/// Which list a cursor belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct ListOf {
    pub tenant: Tenant,
    pub owner: Option<String>,
    pub status: Option<&'static str>,
    pub kind: Option<&'static str>,
}

/// One that has called bootstrap, or has only asked for its obligations: then nothing of it is written down yet.
#[derive(Clone, Debug)]
pub struct Visitor {
    pub tenant: Tenant,
    pub principal: String,
    /// Each with its latest visit.
    pub instances: Vec<(&'static str, usize)>,
    pub first: usize,
    pub last: usize,
    pub sessions: usize,
}

impl World {
    fn empty() -> Self {
        World {
            tasks: Vec::new(),
            leases: Vec::new(),
            receipts: Vec::new(),
            cursors: Vec::new(),
            visitors: Vec::new(),
            clock: Vec::new(),
            next_ms: 0,
            answer: Answer::Nothing,
        }
    }

    /// The number of the step that is being taken.
    pub fn step(&self) -> usize {
        self.clock.len() - 1
    }

    pub fn now_ms(&self) -> u64 {
        self.clock[self.step()]
    }

    /// Of two moments with the same answer, that of the later step is later.
    pub fn ms(&self, moment: Moment) -> u64 {
        self.clock[moment.step] + u64::try_from(moment.plus_s).unwrap() * 1000
    }
}

impl ReferenceStateMachine for World {
    type State = World;
    type Transition = Transition;

    fn init_state() -> BoxedStrategy<World> {
        Just(World::empty()).boxed()
    }

    /// Every step is possible in every world, so that shrinking may leave any of them out.
    fn transitions(world: &World) -> BoxedStrategy<Transition> {
        let call = Call::any(world).prop_map(|(who, call)| Transition::Call(who, call));
        // A moment, a retry's wait, a lease, a session.
        let pass = prop_oneof![2 => Just(1), 6 => Just(30), 3 => Just(400), 1 => Just(2000)].prop_map(Transition::Pass);
        prop_oneof![30 => call, 4 => pass, 2 => Just(Transition::Sweep)].boxed()
    }

    fn apply(mut world: World, transition: &Transition) -> World {
        world.clock.push(world.next_ms);
        world.answer = match transition {
            Transition::Pass(seconds) => {
                world.next_ms += seconds * 1000 + PASS_FRACTION_MS;
                Answer::Nothing
            }
            Transition::Sweep => {
                world.sweep();
                Answer::Nothing
            }
            Transition::Call(who, call) => call.predict(*who, &mut world).unwrap_or_else(Answer::Refused),
        };
        world
    }
}
