//! ReceiveMessage: up to ten messages, each invisible to others for a time. May wait for one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Caller, OperationSpec, Result, Scope, Time};
use waybill_store::{Ctx, Operation, Reply, Tx, Until, Wait};

use super::write;
use crate::Settings;
use crate::dead_letters::{Buried, DeadLetters, Fate, Target, transfer};
use crate::ends::end_all;
use crate::fifo::{self, Attempt, Held, Want, attempt_topic};
use crate::flights::{MESSAGES_MAX, Stored, Taken, Takes};
use crate::message::{Message, MessageAttributes};
use crate::process::Rotation;
use crate::queue::{Part, Queue, is_alone, topic};
use crate::rules::contents::{SOURCE_ARN, TRACE_HEADER, Wanted, check_id, check_names};
use crate::rules::handle::{Handle, Token};
use crate::rules::names::queue_name;
use crate::rules::throttle::Action;
use crate::rules::{check_range, digest};
use crate::shards::{At, What, depart, forget_refusals, turned_away};
use crate::throttle::{Ask, Ticket};
use crate::visibility::VISIBILITY_S_MAX;

const WAIT_S_MAX: i64 = 20;
/// Contents of all messages in one answer, in bytes; the first one comes whatever it has. Written as XML each byte may become
/// five, and an answer must fit into a key's part of the room for answers: what was taken and finds none would be lost to
/// everybody until its visibility ends.
pub const BYTES_MAX: usize = 2 << 20;
/// Times that a receive takes messages because those it has taken were not kept any more, or not enough.
const ROUNDS_MAX: u32 = 8;
/// Between two looks of who waits at a partition that has as much in flight as it may have. Nobody is woken when it has
/// room again: whoever ends a message would have to count the others.
const FULL_AGAIN: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct ReceiveMessage {
    #[serde(default)]
    pub queue_url: String,
    pub max_number_of_messages: Option<i64>,
    /// Takes the place of the queue's; 0 leaves the messages visible.
    pub visibility_timeout: Option<i64>,
    /// Without it the call waits for as long as the queue's own setting says.
    pub wait_time_seconds: Option<i64>,
    /// The older name of the list that follows.
    #[serde(default)]
    pub attribute_names: Vec<String>,
    #[serde(default)]
    pub message_system_attribute_names: Vec<String>,
    #[serde(default)]
    pub message_attribute_names: Vec<String>,
    /// On FIFO queues: whoever makes the same attempt again gets the same messages.
    pub receive_request_attempt_id: Option<String>,
    #[serde(skip)]
    #[schemars(skip)]
    pub ticket: Ticket,
    #[serde(skip)]
    #[schemars(skip)]
    pub at: At,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct Received {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Message>,
    /// In a step of a receive from several stores.
    #[serde(skip)]
    #[schemars(skip)]
    pub(crate) step: Step,
}

/// What a step has to tell to the next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Step {
    /// The first partition that it did not come to.
    pub next: Option<i64>,
    /// The attempt was made before, and cannot be answered as it was then.
    pub is_over: bool,
    /// There may be something that it did not come to.
    pub is_cut_off: bool,
    /// How much the answer holds.
    pub fill: Fill,
}

impl Received {
    pub fn new(messages: Vec<Message>) -> Self {
        Self { messages, step: Step::default() }
    }
}

impl Operation for ReceiveMessage {
    const SPEC: OperationSpec = write("ReceiveMessage", &[Scope::QueuesReceive]);
    type Output = Received;

    fn wait(&self, caller: &Caller) -> Option<Wait> {
        if self.at.is_step() {
            return None;
        }
        self.patience(caller)
    }

    const ADMITS: bool = true;

    async fn admit(&self, ctx: &Ctx<'_>) -> Result<()> {
        let ask = Ask { url: &self.queue_url, action: Action::Receive, tokens: 1, bytes: 0 };
        self.ticket.admit(ctx, ask).await?;
        self.check_names()
    }

    fn is_misjudged(&self) -> bool {
        self.ticket.is_misjudged()
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Received>> {
        let queue = Queue::load_to_receive(tx, &self.queue_url).await?;
        self.at.check(&queue)?;
        self.ticket.settle(ctx, &queue, Action::Receive)?;
        let (limit, wanted) = self.check()?;
        let timeout_s = self.visibility_timeout.unwrap_or_else(|| queue.attributes.visibility_timeout_s());
        let visible_at = ctx.now.after(Duration::from_secs(u64::try_from(timeout_s).unwrap_or(0)));
        let token: Token = ctx.ids.next().into_bytes();
        let dead_letters = DeadLetters::of(ctx, &queue);
        let show = Show { request: self, wanted: &wanted, ctx, queue: &queue, dead_letters, token, visible_at };
        let mut step = Step::default();
        let (messages, mut until) = match queue.is_fifo() {
            true => show.in_order(tx, limit, &mut step).await?,
            false => show.in_any_order(tx, limit).await?,
        };
        // Whoever waits takes any message.
        until.for_all = true;
        if self.wait_time_seconds.is_none() {
            until.at_most = Some(Duration::from_secs(u64::try_from(queue.attributes.wait_s()).unwrap_or(0)));
        }
        if !messages.is_empty() {
            // Whoever waits meanwhile is there when they are visible again.
            tx.wake_at(topic(ctx.caller.tenant, &queue.name), ctx.now, visible_at);
        }
        let is_empty = messages.is_empty();
        let answer = Received { messages, step };
        Ok(if is_empty { Reply::Empty { answer, until } } else { Reply::Done(answer) })
    }
}

impl ReceiveMessage {
    pub(crate) fn patience(&self, caller: &Caller) -> Option<Wait> {
        // How long a queue wants to be waited for is known when it has been read.
        let seconds = self.wait_time_seconds.unwrap_or(WAIT_S_MAX);
        let seconds = Some(seconds).filter(|seconds| (0..=WAIT_S_MAX).contains(seconds))?;
        let name = queue_name(&self.queue_url).ok()?;
        Wait::up_to(u32::try_from(seconds).ok()?, topic(caller.tenant, name))
    }

    /// Before the transaction: what is compared in it is short.
    fn check_names(&self) -> Result<()> {
        check_names("AttributeNames", &self.attribute_names)?;
        check_names("MessageSystemAttributeNames", &self.message_system_attribute_names)?;
        check_names("MessageAttributeNames", &self.message_attribute_names)
    }

    fn check(&self) -> Result<(usize, Wanted)> {
        let limit = self.max_number_of_messages.unwrap_or(1);
        let limit = check_range("MaxNumberOfMessages", limit, 1, MESSAGES_MAX as i64)?;
        check_range("VisibilityTimeout", self.visibility_timeout.unwrap_or(0), 0, VISIBILITY_S_MAX)?;
        check_range("WaitTimeSeconds", self.wait_time_seconds.unwrap_or(0), 0, WAIT_S_MAX)?;
        if let Some(attempt) = &self.receive_request_attempt_id {
            check_id("ReceiveRequestAttemptId", attempt)?;
        }
        let wanted = Wanted::checked(&self.attribute_names, &self.message_system_attribute_names)?;
        Ok((usize::try_from(limit).unwrap_or(1), wanted))
    }
}

/// How this receive shows messages.
struct Show<'a> {
    request: &'a ReceiveMessage,
    wanted: &'a Wanted,
    ctx: &'a Ctx<'a>,
    queue: &'a Queue,
    dead_letters: Option<DeadLetters>,
    token: Token,
    visible_at: Time,
}

/// What becomes of messages that were taken.
#[derive(Default)]
struct Sorted {
    alive: Vec<i64>,
    /// Received too often: buried, or on their way to where they will be.
    dead: Vec<i64>,
    /// Older than they are kept, or gone.
    dropped: Vec<i64>,
    /// Left for the next: too much for one answer, or behind one of their group that has to be done with first.
    spared: Vec<i64>,
}

/// Of the contents of the messages in one answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fill {
    bytes: usize,
    pub is_full: bool,
}

impl Fill {
    /// Whether a message of so many bytes fits in. Once one does not, none behind it does: in a group it would overtake.
    fn takes(&mut self, bytes: usize) -> bool {
        self.is_full |= self.bytes > 0 && self.bytes + bytes > BYTES_MAX;
        self.bytes += if self.is_full { 0 } else { bytes };
        !self.is_full
    }
}

/// One look at the partitions of a FIFO queue.
struct Pass {
    limit: usize,
    began: Instant,
    at_most: Duration,
    messages: Vec<Message>,
    fill: Fill,
    mids: Vec<i64>,
    /// When there will be something, if there is nothing now.
    due: Option<Time>,
    /// It has ended before it had seen everything.
    is_cut_off: bool,
    /// A partition that has something to give was passed over, because it has as much in flight as it may have.
    is_full: bool,
    /// It has rows of groups that others may be waiting for.
    holds: bool,
    /// The first partition that it did not come to.
    next: Option<i64>,
}

impl Pass {
    /// As many as were asked for, or as much as goes into one answer.
    fn is_done(&self) -> bool {
        self.messages.len() == self.limit || self.fill.is_full
    }
}

impl Show<'_> {
    /// Of a standard queue. Also says when there may be something to receive, if there is nothing now.
    async fn in_any_order(&self, tx: &mut Tx<'_>, limit: usize) -> Result<(Vec<Message>, Until)> {
        let mut takes = self.takes(&self.queue.part);
        takes.refuse_crowd(tx).await?;
        let (messages, more) = self.gather(tx, &mut takes, limit).await?;
        let mut until = Until::default();
        match (messages.is_empty(), more) {
            (false, _) => {}
            // Behind more expired messages than one receive deletes, or beside those who were quicker, there may be others.
            (true, true) => until.look = Some(self.ctx.now),
            (true, false) => until.due = takes.next_due(tx).await?,
        }
        takes.tidy(tx).await?;
        Ok((messages, until))
    }

    /// Takes messages until there are enough or none are left; true when it gave up before that. What is no longer
    /// kept is deleted, what was received too often goes to the dead letters, and neither counts.
    async fn gather(&self, tx: &mut Tx<'_>, takes: &mut Takes, limit: usize) -> Result<(Vec<Message>, bool)> {
        let (mut messages, mut fill) = (Vec::new(), Fill::default());
        for _ in 0..ROUNDS_MAX {
            let taken = takes.take(tx, limit - messages.len()).await?;
            if taken.is_empty() {
                return Ok((messages, takes.was_outrun()));
            }
            let rows = takes.fetch(tx, &taken).await?;
            let sorted = self.sort(tx, takes.part(), (&rows, &taken), &mut fill).await?;
            if !sorted.dropped.is_empty() {
                end_all(tx, takes.part(), &sorted.dropped).await?;
            }
            self.spare(tx, takes, &sorted.spared).await?;
            self.show(&rows, &taken, &sorted, &mut messages)?;
            if messages.len() == limit || fill.is_full || (sorted.dropped.is_empty() && sorted.dead.is_empty()) {
                return Ok((messages, false));
            }
            if sorted.alive.is_empty() && !sorted.dropped.is_empty() {
                takes.end_expired(tx, self.queue.kept_since(self.ctx.now)).await?;
            }
        }
        Ok((messages, true))
    }

    fn takes(&self, part: &Part) -> Takes {
        Takes::new(*part, self.ctx.now, self.token, self.visible_at)
    }

    /// Of a FIFO queue.
    async fn in_order(&self, tx: &mut Tx<'_>, limit: usize, step: &mut Step) -> Result<(Vec<Message>, Until)> {
        // Whatever was given out is remembered beside the first partition.
        let (first, now) = (&self.queue.part, self.ctx.now);
        let attempt = self.request.receive_request_attempt_id.as_deref();
        let what = self.request.at.what();
        if let Some(attempt) = attempt {
            // Of two that are made at once the second finds what the first has been given.
            tx.in_turn(attempt_topic(self.ctx.caller.tenant, &self.queue.name, attempt)).await?;
            // A receive from several stores has asked all of them before it takes anything.
            if !matches!(what, Some(What::New | What::Forget))
                && let Some(before) = Attempt::find(tx, first, attempt, now).await?
            {
                return self.again(tx, before).await;
            }
        }
        if what == Some(What::Before) {
            step.is_over = Attempt::is_known(tx, first, attempt.unwrap_or_default(), now).await?;
            return Ok((Vec::new(), Until::default()));
        }
        if what == Some(What::Forget) {
            Attempt::forget(tx, first, attempt.unwrap_or_default()).await?;
            return Ok((Vec::new(), Until::default()));
        }
        let mut pass = Pass {
            limit,
            began: Instant::now(),
            at_most: Rotation::of(self.ctx, &self.queue.name).pass_max(),
            messages: Vec::new(),
            fill: self.request.at.fill(),
            mids: Vec::new(),
            due: None,
            is_cut_off: false,
            is_full: false,
            holds: false,
            next: None,
        };
        self.look(tx, &mut pass).await?;
        let Pass { messages, fill, mids, due, is_cut_off, is_full, next, .. } = pass;
        (step.next, step.fill, step.is_cut_off) = (next, fill, is_cut_off && messages.is_empty());
        let mut until = Until::default();
        match (messages.is_empty(), is_cut_off) {
            (false, _) => {}
            // Behind more expired messages than one receive deletes, or in partitions that it had no time for, there may
            // be others.
            (true, true) => until.look = Some(now),
            (true, false) => {
                until.due = due;
                until.look = is_full.then(|| now.after(FULL_AGAIN));
            }
        }
        if let Some(attempt) = attempt.filter(|_| !mids.is_empty()) {
            Attempt::keep(tx, first, attempt, (&self.token, &mids), (now, self.visible_at)).await?;
        }
        Ok((messages, until))
    }

    /// What was answered before.
    async fn again(&self, tx: &mut Tx<'_>, before: Attempt) -> Result<(Vec<Message>, Until)> {
        let rows = self.takes(&self.queue.part).fetch(tx, &before.taken).await?;
        let again = Show { token: before.token, dead_letters: None, ..*self };
        let alive = before.taken.iter().map(|taken| taken.mid).collect();
        let mut messages = Vec::new();
        again.show(&rows, &before.taken, &Sorted { alive, ..Sorted::default() }, &mut messages)?;
        Ok((messages, Until::default()))
    }

    /// Looks at every partition that has a group which can be received, beginning with another one each time.
    async fn look(&self, tx: &mut Tx<'_>, pass: &mut Pass) -> Result<()> {
        let now = self.ctx.now;
        let rotation = Rotation::of(self.ctx, &self.queue.name);
        let is_split = self.queue.spread > 0;
        // A call that has several steps has one turn for all of them.
        let step = self.request.at.begin();
        let begin = if is_split { step.unwrap_or_else(|| rotation.first()) & self.queue.spread } else { 0 };
        let mut parts: Vec<&Part> = self.queue.parts().collect();
        parts.sort_by_key(|part| (part.partition - begin) & self.queue.spread);
        let is_ready = |part: &&&Part| part.ready_at.is_some_and(|at| at <= now);
        pass.due = parts.iter().filter_map(|part| part.ready_at).filter(|at| *at > now).min();
        let ready: Vec<&Part> = parts.iter().filter(is_ready).copied().collect();
        // While there are others, nobody waits for a partition whose groups somebody holds at this moment.
        let only_one = if ready.len() == 1 { Held::WaitFor } else { Held::Skip };
        let mut next = self.look_at(tx, pass, &ready, only_one).await?;
        if pass.messages.is_empty() && next.is_none() && ready.len() > 1 {
            next = self.look_at(tx, pass, &ready, Held::WaitFor).await?;
        }
        if pass.messages.is_empty() && !pass.is_cut_off {
            for part in &ready {
                let due = fifo::next_ready(tx, part, now).await?;
                pass.due = pass.due.into_iter().chain(due).min();
            }
        }
        pass.next = next;
        if is_split && step.is_none() {
            rotation.set_next(next.unwrap_or(begin + 1) & self.queue.spread);
        }
        Ok(())
    }

    /// Answers with the first partition that it did not come to, if there is one.
    async fn look_at(&self, tx: &mut Tx<'_>, pass: &mut Pass, ready: &[&Part], held: Held) -> Result<Option<i64>> {
        for (index, part) in ready.iter().enumerate() {
            let is_over = index > 0 && pass.began.elapsed() >= pass.at_most;
            if is_over || pass.is_done() {
                pass.is_cut_off |= is_over;
                return Ok(Some(part.partition));
            }
            let takes = self.takes(part);
            if takes.is_full(tx).await? {
                pass.is_full = true;
                continue;
            }
            let before = pass.mids.len();
            // That it is not full any more may just have been written to the part's row.
            let held = if part.crowded { Held::Skip } else { held };
            self.gather_in_order(tx, pass, &takes, held).await?;
            takes.look_at_crowd(tx, pass.mids.len() - before).await?;
        }
        Ok(None)
    }

    /// As `gather`, from the fronts of one partition's groups, each of which serves this receive once. Who finds less than it
    /// wants looks again: others may have held groups that they have not taken from.
    async fn gather_in_order(&self, tx: &mut Tx<'_>, pass: &mut Pass, takes: &Takes, held: Held) -> Result<()> {
        let (part, times) = (takes.part(), (self.ctx.now, &self.token, self.visible_at));
        let mut served = Vec::new();
        for looks in 0..ROUNDS_MAX {
            // Who holds groups already waits for nobody who may be waiting for them, also where all that was in them is gone.
            let waits = if pass.holds { Held::Skip } else { held };
            let want = Want { messages: pass.limit - pass.messages.len(), held: waits, looks, but: &served };
            let picked = fifo::take(tx, part, times, want).await?;
            if picked.is_empty() {
                // It would have waited: there may be something for a look that holds nothing.
                pass.is_cut_off |= waits != held && !is_alone(tx);
                return Ok(());
            }
            pass.holds = true;
            let (groups, taken): (Vec<String>, Vec<Taken>) = picked.into_iter().unzip();
            let rows = takes.fetch(tx, &taken).await?;
            let sorted = self.sort(tx, part, (&rows, &taken), &mut pass.fill).await?;
            let members: Vec<(String, i64)> =
                groups.into_iter().zip(&taken).map(|(group, taken)| (group, taken.mid)).collect();
            self.show(&rows, &taken, &sorted, &mut pass.messages)?;
            pass.mids.extend(&sorted.alive);
            let is_plain = sorted.dropped.is_empty() && sorted.dead.is_empty() && sorted.spared.is_empty();
            if is_plain {
                fifo::put_off(tx, part, &members, self.visible_at).await?;
            } else {
                let dropped: Vec<_> = members.iter().filter(|(_, mid)| sorted.dropped.contains(mid)).cloned().collect();
                fifo::end(tx, part, &dropped).await?;
                // Their groups may be blocked: whom to wake is known when these are settled.
                takes.give_back(tx, &sorted.spared).await?;
                let settled = fifo::settle(tx, part, &members, self.ctx.now).await?;
                settled.announce(tx, topic(self.ctx.caller.tenant, &self.queue.name), self.ctx.now);
            }
            // Where nobody else takes anything the first look has found all that there is.
            if pass.is_done() || (is_plain && is_alone(tx)) {
                return Ok(());
            }
            let alive = members.into_iter().filter(|(_, mid)| sorted.alive.contains(mid));
            served.extend(alive.map(|(group, _)| group));
        }
        pass.is_cut_off = true;
        Ok(())
    }

    /// Buries the dead, if there is somewhere to take them. Those that there is not are delivered, if they fit in as others do.
    async fn sort(
        &self,
        tx: &mut Tx<'_>,
        part: &Part,
        (rows, taken): (&[Stored], &[Taken]),
        fill: &mut Fill,
    ) -> Result<Sorted> {
        let kept_since = self.queue.kept_since(self.ctx.now);
        let mut sorted = Sorted::default();
        for taken in taken {
            match find(rows, taken.mid)? {
                Some(row) if row.sent_at()? > kept_since => {
                    if self.is_dead(taken) {
                        sorted.dead.push(taken.mid);
                    }
                }
                _ => sorted.dropped.push(taken.mid),
            }
        }
        let (buried, refused) = match sorted.dead.is_empty() {
            true => (Buried::default(), Vec::new()),
            false => self.bury(tx, part, rows, &sorted.dead).await?,
        };
        sorted.dead.retain(|mid| !buried.kept.contains(mid) && !buried.behind.contains(mid));
        self.choose((rows, taken), &buried, fill, &mut sorted)?;
        let delivered: Vec<i64> = refused.into_iter().filter(|mid| sorted.alive.contains(mid)).collect();
        if !delivered.is_empty() {
            forget_refusals(tx, &delivered).await?;
        }
        Ok(sorted)
    }

    /// Of what is neither dropped nor dead, what is delivered: as much as fits in, and of a FIFO queue's group nothing behind
    /// one that goes to another store, since it comes first again if it is turned away there.
    fn choose(
        &self,
        (rows, taken): (&[Stored], &[Taken]),
        buried: &Buried,
        fill: &mut Fill,
        sorted: &mut Sorted,
    ) -> Result<()> {
        let mut waiting: BTreeSet<&str> = BTreeSet::new();
        for taken in taken {
            if sorted.dropped.contains(&taken.mid) {
                continue;
            }
            let Some(row) = find(rows, taken.mid)? else { continue };
            let group = row.group()?.filter(|_| self.queue.is_fifo());
            if buried.far.contains(&taken.mid) || buried.behind.contains(&taken.mid) {
                waiting.extend(group);
            }
            if sorted.dead.contains(&taken.mid) {
                continue;
            }
            let waits = group.is_some_and(|group| waiting.contains(group));
            match !waits && fill.takes(row.bytes()?) {
                true => sorted.alive.push(taken.mid),
                false => sorted.spared.push(taken.mid),
            }
        }
        Ok(())
    }

    /// Gives messages back as if they had not been taken. Whoever has looked meanwhile has not seen them.
    async fn spare(&self, tx: &mut Tx<'_>, takes: &Takes, mids: &[i64]) -> Result<()> {
        if !mids.is_empty() {
            takes.give_back(tx, mids).await?;
            tx.wake(topic(self.ctx.caller.tenant, &self.queue.name), u32::try_from(mids.len()).unwrap_or(u32::MAX));
        }
        Ok(())
    }

    /// Those that are alive, in the order in which they were taken.
    fn show(&self, rows: &[Stored], taken: &[Taken], sorted: &Sorted, messages: &mut Vec<Message>) -> Result<()> {
        for taken in taken.iter().filter(|taken| sorted.alive.contains(&taken.mid)) {
            if let Some(row) = find(rows, taken.mid)? {
                messages.push(self.message(row, taken)?);
            }
        }
        Ok(())
    }

    fn is_dead(&self, taken: &Taken) -> bool {
        self.dead_letters.as_ref().is_some_and(|letters| taken.receives > letters.receives_max)
    }

    /// Also answers with those that are noted as turned away, whatever becomes of them.
    async fn bury(&self, tx: &mut Tx<'_>, part: &Part, rows: &[Stored], mids: &[i64]) -> Result<(Buried, Vec<i64>)> {
        let nowhere = || (Buried { kept: mids.to_vec(), ..Buried::default() }, Vec::new());
        let Some(letters) = &self.dead_letters else { return Ok(nowhere()) };
        let fate = Fate::Dead { source: self.queue.name.as_str() };
        let to = match letters.target(self.ctx, tx, self.queue).await? {
            Target::Nowhere => return Ok(nowhere()),
            Target::Elsewhere => None,
            Target::Here(to) => Some(to),
        };
        let (mut near, mut far) = (Vec::new(), Vec::new());
        for mid in mids {
            let group = find(rows, *mid)?.map_or(Ok(None), Stored::group)?.unwrap_or_default();
            let is_near = to.as_ref().is_some_and(|to| !to.is_spread() || to.has_here(group));
            if is_near { near.push(*mid) } else { far.push((group, *mid)) }
        }
        if let Some(to) = to.filter(|_| !near.is_empty()) {
            transfer(self.ctx, tx, self.ctx.caller.tenant, (part, &near), &to, fate).await?;
        }
        if far.is_empty() {
            return Ok((Buried::default(), Vec::new()));
        }
        let leaving: Vec<i64> = far.iter().map(|(_, mid)| *mid).collect();
        let refused = turned_away(tx, &leaving).await?;
        let buried = Buried::sort(&far, &refused);
        if !buried.far.is_empty() {
            depart(self.ctx, tx, part, &buried.far, letters.name(), fate).await?;
        }
        Ok((buried, refused))
    }

    fn message(&self, row: &Stored, taken: &Taken) -> Result<Message> {
        let partition = self.queue.partition_of(taken.mid);
        let handle = Handle { partition, generation: self.queue.generation, mid: taken.mid, token: self.token };
        let contents = row.contents()?;
        let mut message = Message {
            message_id: row.id()?,
            receipt_handle: handle.encode(),
            md5_of_body: digest::hex(row.md5()?),
            body: String::new(),
            attributes: self.system_attributes(row, taken)?,
            md5_of_message_attributes: None,
            message_attributes: MessageAttributes::new(),
            partition,
            unread: contents.is_none().then_some(taken.mid),
        };
        if let Some((body, attributes)) = contents {
            message.fill(body.to_owned(), attributes, &self.request.message_attribute_names)?;
        }
        Ok(message)
    }

    fn system_attributes(&self, row: &Stored, taken: &Taken) -> Result<BTreeMap<String, String>> {
        let source = row.source()?.filter(|_| self.wanted.has(SOURCE_ARN));
        let all = [
            ("SenderId", Some(row.sender()?.to_owned())),
            ("SentTimestamp", Some(millis(row.sent_at()?))),
            ("ApproximateReceiveCount", Some(taken.receives.to_string())),
            ("ApproximateFirstReceiveTimestamp", Some(millis(taken.first_at))),
            ("MessageGroupId", row.group()?.map(str::to_owned)),
            ("MessageDeduplicationId", row.deduplication()?.map(str::to_owned)),
            ("SequenceNumber", self.queue.sequence_of(taken.mid)),
            (TRACE_HEADER, row.trace()?.map(str::to_owned)),
            (SOURCE_ARN, source.map(|source| Settings::arns(self.ctx).arn(source))),
        ];
        let shown = all.into_iter().filter(|(name, _)| self.wanted.has(name));
        Ok(shown.filter_map(|(name, value)| Some((name.to_owned(), value?))).collect())
    }
}

/// One of ten rows at most.
fn find(rows: &[Stored], mid: i64) -> Result<Option<&Stored>> {
    for row in rows {
        if row.mid()? == mid {
            return Ok(Some(row));
        }
    }
    Ok(None)
}

fn millis(time: Time) -> String {
    (time.micros() / 1_000).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_takes_the_first_message_and_then_as_many_as_fit() {
        let of = |sizes: &[usize]| {
            let mut fill = Fill::default();
            sizes.iter().map(|bytes| fill.takes(*bytes)).collect::<Vec<_>>()
        };
        const HALF: usize = BYTES_MAX / 2;
        assert_eq!(of(&[HALF, HALF, 1]), [true, true, false]);
        assert_eq!(of(&[BYTES_MAX + 1, 1]), [true, false]);
        assert_eq!(of(&[HALF, HALF + 1, 1]), [true, false, false], "none overtakes the one that did not fit");
        assert_eq!(of(&[256; 10]), [true; 10]);
    }
}
