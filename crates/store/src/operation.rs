//! What a domain writes: a struct that is the request, a `SPEC`, and `run` inside a transaction.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use waybill_kernel::{Caller, Entropy, IdSource, Mode, OperationSpec, Result, Time};

use crate::procedure::{Answered, Flow, Procedure};
use crate::turns::Owner;
use crate::{Settings, Topic, Tx};

/// One operation of one domain: every door decodes into it and encodes its output.
///
/// # Contract
/// `run` has no effect outside `tx` and awaits nothing but `tx`: it may be run again after a serialization failure or
/// a voided batch, and on SQLite it is polled exactly once. What a call needs from elsewhere is for `admit`. It may note
/// something in the process's memory where a second run changes nothing about it.
pub trait Operation: DeserializeOwned + JsonSchema + Send + Sync + 'static {
    const SPEC: OperationSpec;
    /// Almost everything stays inside the caller's tenant; what does not says so.
    const REACH: Reach = Reach::Tenant;
    type Output: Serialize + JsonSchema + Send + 'static;

    /// True where `prepare` has something to do.
    const PREPARES: bool = false;

    /// Slow work that needs no database, such as hashing a secret: done once per call, off the runtime's threads and
    /// before the transaction, where it would hold up everybody's writes.
    fn prepare(&mut self, _entropy: &dyn Entropy) -> Result<()> {
        Ok(())
    }

    /// True where `admit` has something to do.
    const ADMITS: bool = false;

    /// May the call be made now, by what the process knows without its database? Asked once before the first transaction
    /// and never by its reruns, so it may charge for the call, and it may wait for something else than the database.
    fn admit(&self, _ctx: &Ctx<'_>) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// Asked when a run has failed: has it found that the call was admitted by something that is not true? Then nothing
    /// was written, and the call is admitted anew and run again.
    fn is_misjudged(&self) -> bool {
        false
    }

    /// The transaction is durable: what the process remembers beside its database may be brought up to date. Not called
    /// when nothing was kept, nor when the caller has gone meanwhile: it is for what is found out later at some cost.
    fn committed(&self, _caller: &Caller, _settings: &Settings, _output: &Self::Output) {}

    /// True for a list that gives out positions to go on from, which must not stay behind what its caller wrote before: on
    /// PostgreSQL the call waits a moment while older transactions hold that back.
    const SETTLES: bool = false;

    /// The path that takes its place, once it is deprecated: every answer says so.
    const SUCCESSOR: Option<&'static str> = None;

    /// With which calls of its tenant this one may share a transaction on PostgreSQL. For operations that are called all the time.
    fn sharing(&self) -> Option<Sharing<'_>> {
        None
    }

    /// True where a call may be answered by [`Reply::Replay`].
    const REPLAYS: bool = false;

    /// Whether this very call writes: one that only reads may say so where others of the operation write.
    fn mode(&self) -> Mode {
        Self::SPEC.mode
    }

    /// What the caller is willing to wait for, if anything.
    fn wait(&self, _caller: &Caller) -> Option<Wait> {
        None
    }

    fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> impl Future<Output = Result<Reply<Self::Output>>> + Send;
}

/// Calls that share a transaction hold what they lock until the last of them is done.
#[derive(Clone, Copy, Debug)]
pub struct Sharing<'a> {
    /// What the call is about, if that is something whose rows are locked: it shares with others about the same, and few such
    /// transactions run at a time. Calls that lock nothing which others want are about nothing in particular.
    pub about: Option<&'a str>,
    /// They run in the order of this: whoever locks several rows of the thing has to lock them in one order.
    pub order: &'a str,
}

impl Sharing<'_> {
    /// Of calls that lock nothing which calls of the same kind want.
    pub const FREELY: Self = Self { about: None, order: "" };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Tx binds the caller's tenant as `$1` of every statement.
    Tenant,
    /// The operation names tenants itself and must check who is asking.
    System,
}

#[derive(Clone, Copy, Debug)]
pub struct Wait {
    pub topic: Topic,
    pub at_most: Duration,
}

impl Wait {
    /// Longer waits are shortened to this, not refused.
    pub const LONGEST: Duration = Duration::from_secs(20);

    /// None for no time at all.
    pub fn up_to(seconds: u32, topic: Topic) -> Option<Self> {
        let at_most = Duration::from_secs(seconds.into()).min(Self::LONGEST);
        (seconds > 0).then_some(Self { topic, at_most })
    }
}

#[derive(Debug)]
pub enum Reply<T> {
    Done(T),
    /// The answer of an earlier request with the same key.
    Replay(T),
    /// Nothing to give yet: wait for the topic; `answer` is what to say when patience ends.
    Empty {
        answer: T,
        until: Until,
    },
}

/// What a run that found nothing knows of the time to come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Until {
    /// From then on something of the topic is there to be found, by whomever, and not before: one of those who wait for it is woken,
    /// and one more for as long as something is found.
    pub due: Option<Time>,
    /// This caller looks again then, whatever happens.
    pub look: Option<Time>,
    /// How long to wait in all, where only the run could tell. [`Wait::at_most`] stays the longest.
    pub at_most: Option<Duration>,
    /// All who wait for the topic are after the same: where this run has found nothing, nobody is woken in its place.
    pub for_all: bool,
}

impl Until {
    /// Whether the run has looked at all that there is, and does not look again by itself.
    pub(crate) fn looked_everywhere(&self) -> bool {
        self.look.is_none()
    }

    /// Whether nobody else would have found anything either.
    pub(crate) fn looked_for_all(&self) -> bool {
        self.for_all && self.looked_everywhere()
    }
}

/// What one run of a stream gives out.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Turn {
    pub events: Vec<Event>,
    /// Where the next turn begins: its `last_event_id`.
    pub position: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Event {
    /// The position after it.
    pub id: String,
    pub kind: &'static str,
    /// JSON on one line.
    pub data: String,
}

/// What a run knows besides its input. `now` is taken when the run begins.
pub struct Ctx<'a> {
    pub now: Time,
    pub caller: &'a Caller,
    pub ids: &'a IdSource,
    pub(crate) settings: &'a Settings,
    /// As [`Call::stored_beside`].
    pub(crate) stored_beside: i64,
}

impl Ctx<'_> {
    pub fn settings<T: 'static>(&self) -> &T {
        self.settings.get()
    }

    /// None where the store was opened without.
    pub fn settings_if_given<T: 'static>(&self) -> Option<&T> {
        self.settings.find()
    }
}

/// What the engines run: an operation, or a piece of the program's own work (authentication, sweeps).
pub trait Work: Send + Sync + 'static {
    type Output: Send + 'static;

    fn mode(&self) -> Mode;

    /// Run on a full disk too. The program's own work is: it ends things, or the program does not work without it.
    fn relieves(&self) -> bool {
        true
    }

    fn sharing(&self) -> Option<Sharing<'_>> {
        None
    }

    fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> impl Future<Output = Result<Self::Output>> + Send;
}

/// One call: everything that stays the same when its work has to be run again.
pub struct Call<W> {
    pub(crate) work: W,
    pub(crate) reach: Reach,
    pub(crate) caller: Caller,
    pub(crate) ids: IdSource,
    pub(crate) settings: Arc<Settings>,
    /// Bytes of rows that the caller's tenant has in other stores than this one, as far as the process knows.
    pub(crate) stored_beside: i64,
}

impl<W> Call<W> {
    /// The context of one run: same ids as in every other run, its own `now`.
    pub(crate) fn ctx(&self, now: Time) -> Ctx<'_> {
        self.ids.rewind();
        let stored_beside = self.stored_beside;
        Ctx { now, caller: &self.caller, ids: &self.ids, settings: &self.settings, stored_beside }
    }

    /// In whose line it waits for its turn.
    pub(crate) fn owner(&self) -> Owner {
        Owner::new(self.caller.tenant, &self.caller.principal)
    }
}

/// One transaction in home.
impl<O: Operation> Procedure for O {
    const SPEC: OperationSpec = O::SPEC;
    type Output = O::Output;
    const SUCCESSOR: Option<&'static str> = O::SUCCESSOR;
    const REPLAYS: bool = O::REPLAYS;

    fn call(self, flow: &Flow<'_>) -> impl Future<Output = Answered<O::Output>> + Send {
        flow.home().run_beside(self, flow.caller.clone(), flow.stored_beside())
    }
}

pub(crate) struct OperationWork<O>(pub(crate) O);

impl<O: Operation> Work for OperationWork<O> {
    type Output = Reply<O::Output>;

    fn mode(&self) -> Mode {
        self.0.mode()
    }

    fn relieves(&self) -> bool {
        O::SPEC.relieves
    }

    fn sharing(&self) -> Option<Sharing<'_>> {
        self.0.sharing()
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Self::Output> {
        self.0.run(ctx, tx).await
    }
}
