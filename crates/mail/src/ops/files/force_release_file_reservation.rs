//! Force: ends somebody else's reservation that nobody seems to need any more. The former holder is told by mail.
//!
//! Judged by the database, and by the files themselves where the operator lets the server look at them: they are looked at
//! before the transaction, which they would hold up.

use std::path::Path;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Semaphore;
use waybill_checkout::{Checkout, LOOKED_MAX, Looked, Sign, signs};
use waybill_kernel::{Code, Error, Example, OperationSpec, Profile, Result, Route, Time};
use waybill_store::{Answered, Ctx, Flow, Operation, Procedure, Reply, Tx};

use super::list_file_reservations::Shown;
use crate::Settings;
use crate::acting::{Agent, Project, act_as, agent_columns, project, touch};
use crate::archive_rows::changed;
use crate::guard::{Reach, Target};
use crate::recipients::Recipient;
use crate::reservations::{Reservation, lock, reservation_columns};
use crate::rules::addresses::Kind;
use crate::rules::message::Importance;
use crate::sending::{Files, Outgoing, deliver};
use crate::sent::check_active;

/// A holder that has done nothing for so long is not at work.
const INACTIVE: Duration = Duration::from_secs(1_800);
/// A holder that has written so recently is.
const MAIL_GRACE: Duration = Duration::from_secs(900);
/// A file that was changed or committed so recently is worked on.
const FILE_GRACE: Duration = Duration::from_secs(900);
const NOTE_CHARS_MAX: usize = 1_000;

/// Working trees that are looked at at a time: each look has a thread to itself, and a tree may keep it waiting.
static LOOKING: Semaphore = Semaphore::const_new(4);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ForceReleaseFileReservation {
    /// The project's absolute path or slug.
    pub project_key: String,
    /// Who ends it.
    pub agent_name: String,
    pub file_reservation_id: i64,
    /// Why, for the former holder.
    #[schemars(length(max = 1000))]
    pub note: Option<String>,
    /// True unless given: the former holder gets a message.
    #[schemars(extend("x-rare" = true))]
    pub notify_previous: Option<bool>,
    /// The agent's token, where somebody else registered it.
    #[schemars(extend("x-rare" = true))]
    pub registration_token: Option<String>,
    /// What the files show; None where nobody looked.
    #[serde(skip)]
    pub looked: Option<Looked>,
}

// The operation with a look at the files before it. No doc comment: it would be what tools say of their input.
#[derive(Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(transparent)]
pub struct LookingFirst(ForceReleaseFileReservation);

#[derive(Debug, Serialize, JsonSchema)]
pub struct ForceReleased {
    /// False when it had been released before; nothing was changed then, and nobody was told.
    pub released: bool,
    pub released_at: Time,
    pub reservation: Shown,
    /// Why it could be ended.
    pub reasons: Vec<String>,
    /// The message that the former holder was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notice_id: Option<i64>,
}

impl Operation for ForceReleaseFileReservation {
    const SPEC: OperationSpec = OperationSpec {
        name: "force_release_file_reservation",
        route: Route::post("/v1/mail/file_reservations/{file_reservation_id}/force_release"),
        profile: Profile::Core,
        destructive: true,
        repeatable: true,
        title: "End another's reservation",
        description: "End a reservation whose holder has gone: one that has expired, or whose holder was inactive for 30 minutes, \
                      sent nothing for 15 and changed none of the files. Otherwise RESERVATION_ACTIVE says why it stays. The \
                      former holder is told.",
        example: Example {
            arguments: r#"{"project_key": "/data/projects/backend", "agent_name": "GreenCastle", "file_reservation_id": 33,
                "note": "Needed for the release."}"#,
            answer: r#"{"released": true, "released_at": "2026-01-05T12:40:00.000000Z", "reservation": {"id": 33,
                "agent": "BlueLake", "path_pattern": "docs/**", "exclusive": true, "reason": "", "active": false,
                "created_ts": "2026-01-05T10:00:00.000000Z", "expires_ts": "2026-01-05T12:45:00.000000Z",
                "released_ts": "2026-01-05T12:40:00.000000Z"},
                "reasons": ["The holder was last active at 2026-01-05T10:02:00.000000Z."], "notice_id": 12}"#,
        },
        ..super::WRITE
    };
    type Output = ForceReleased;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<ForceReleased>> {
        let note = self.note.as_deref().unwrap_or("").trim();
        if note.chars().count() > NOTE_CHARS_MAX {
            return Err(Error::invalid(format!("note must have at most {NOTE_CHARS_MAX} characters.")));
        }
        if self.file_reservation_id < 1 {
            return Err(Error::invalid("file_reservation_id must be a number that file_reservation_paths has given."));
        }
        let project = project(tx, &self.project_key).await?;
        let acting = act_as(ctx, tx, &project, &self.agent_name, self.registration_token.as_deref()).await?;
        check_active(&acting.agent)?;
        let now = lock(ctx, tx, project.id).await?;
        let (held, holder) = self.find(tx, &project).await?;
        if let Some(released_at) = held.released_at {
            let reasons = vec!["It had been released before.".to_owned()];
            let reservation = Shown::new(held, now);
            return Ok(Reply::Done(ForceReleased {
                released: false,
                released_at,
                reservation,
                reasons,
                notice_id: None,
            }));
        }
        let reasons = judge(tx, now, &held, &holder, self.looked.as_ref()).await?;
        let held = self.release(tx, now, held).await?;
        changed(tx, now, project.id, holder.id).await?;
        touch(ctx, tx, &acting.agent).await?;
        let notice_id = match self.notify_previous.unwrap_or(true) && holder.id != acting.agent.id {
            true => Some(notify(ctx, tx, &project, &acting.agent, &holder, &held, note).await?),
            false => None,
        };
        let reservation = Shown::new(held, now);
        Ok(Reply::Done(ForceReleased { released: true, released_at: now, reservation, reasons, notice_id }))
    }
}

impl Procedure for LookingFirst {
    const SPEC: OperationSpec = <ForceReleaseFileReservation as Operation>::SPEC;
    type Output = ForceReleased;

    async fn call(self, flow: &Flow<'_>) -> Answered<ForceReleased> {
        let mut operation = self.0;
        operation.looked = look(flow, &operation).await?;
        flow.home().run_in_turn(operation, flow.caller.clone()).await
    }
}

/// None where there is nothing to look at, or the server may not.
async fn look(flow: &Flow<'_>, of: &ForceReleaseFileReservation) -> Result<Option<Looked>> {
    let roots = flow.home().settings().get::<Settings>().roots();
    if roots.open.is_empty() {
        return Ok(None);
    }
    let find_files = FindFiles {
        project_key: of.project_key.clone(),
        agent_name: of.agent_name.clone(),
        token: of.registration_token.clone(),
        file_reservation_id: of.file_reservation_id,
    };
    let (Reply::Done(found) | Reply::Replay(found) | Reply::Empty { answer: found, .. }) =
        flow.run(flow.home(), find_files).await?;
    let Some(pattern) = found.path else { return Ok(None) };
    let since_s = found.now.micros() / 1_000_000 - i64::try_from(FILE_GRACE.as_secs()).unwrap_or(i64::MAX);
    let place = LOOKING.acquire().await;
    let place = place.map_err(|_| Error::new(Code::ShuttingDown, "The server is stopping."))?;
    let look = move || -> Result<Option<Looked>> {
        // For as long as the thread works, also where its caller has gone.
        let _place = place;
        let Some(checkout) = Checkout::open(&roots, Path::new(&found.human_key))? else { return Ok(None) };
        let reach = Reach::of(&pattern, false);
        let holds = |path: &str| reach.holds(&Target::of(path, false));
        signs(&checkout, &pattern, since_s, &holds).map(Some)
    };
    let looked = tokio::task::spawn_blocking(look).await.map_err(Error::internal)?;
    // A tree that cannot be read shows nothing: the database decides alone, as where nobody may look.
    Ok(looked.unwrap_or_else(|error| {
        let cause = error.cause().unwrap_or_default();
        tracing::warn!(%error, cause, "the files of a reservation could not be looked at");
        None
    }))
}

/// Which files a reservation is about, for those who may act for an agent of its project.
#[derive(Debug, Deserialize, JsonSchema)]
struct FindFiles {
    project_key: String,
    agent_name: String,
    token: Option<String>,
    file_reservation_id: i64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ReservedFiles {
    human_key: String,
    now: Time,
    /// None where it is over, so that nobody has to look.
    path: Option<String>,
}

impl Operation for FindFiles {
    const SPEC: OperationSpec = OperationSpec { name: "place_reservation", ..super::READ };
    type Output = ReservedFiles;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<ReservedFiles>> {
        let project = project(tx, &self.project_key).await?;
        act_as(ctx, tx, &project, &self.agent_name, self.token.as_deref()).await?;
        let held = find(tx, &project, self.file_reservation_id).await?;
        let path = held.is_active(ctx.now).then_some(held.path);
        Ok(Reply::Done(ReservedFiles { human_key: project.human_key, now: ctx.now, path }))
    }
}

async fn find(tx: &mut Tx<'_>, project: &Project, id: i64) -> Result<Reservation> {
    const ONE: &str = concat!(
        "SELECT ",
        reservation_columns!(),
        " FROM mail_reservations r JOIN mail_agents a ON a.tenant = $1 AND a.agent = r.agent \
         WHERE r.tenant = $1 AND r.project = $2 AND r.reservation = $3"
    );
    let row = tx.query_opt(ONE, &[project.id.into(), id.into()]).await?;
    Reservation::read(&row.ok_or_else(|| Error::not_found("file reservation"))?)
}

impl ForceReleaseFileReservation {
    async fn find(&self, tx: &mut Tx<'_>, project: &Project) -> Result<(Reservation, Agent)> {
        const HOLDER: &str =
            concat!("SELECT ", agent_columns!(), " FROM mail_agents a WHERE a.tenant = $1 AND a.agent = $2");
        let held = find(tx, project, self.file_reservation_id).await?;
        let holder = tx.query_opt(HOLDER, &[held.agent.into()]).await?;
        let holder = holder.ok_or_else(|| Error::internal("a reservation has no holder"))?;
        Ok((held, Agent::read(&holder)?))
    }

    async fn release(&self, tx: &mut Tx<'_>, now: Time, held: Reservation) -> Result<Reservation> {
        const RELEASE: &str = "UPDATE mail_reservations SET released_at = $3 \
            WHERE tenant = $1 AND reservation = $2 AND released_at IS NULL";
        match tx.execute(RELEASE, &[held.id.into(), now.into()]).await? {
            1 => Ok(Reservation { released_at: Some(now), ..held }),
            _ => Err(Error::internal("a reservation was released by somebody else under the lock")),
        }
    }
}

/// Why it may be ended, or the error that says why not.
async fn judge(
    tx: &mut Tx<'_>,
    now: Time,
    held: &Reservation,
    holder: &Agent,
    looked: Option<&Looked>,
) -> Result<Vec<String>> {
    const LAST_SENT: &str = "SELECT created_at FROM mail_messages WHERE tenant = $1 AND sender = $2 \
                             ORDER BY created_at DESC, message DESC LIMIT 1";
    if held.expires_at <= now {
        return Ok(vec![format!("It expired at {}.", held.expires_at)]);
    }
    let last_sent = tx.query_opt(LAST_SENT, &[holder.id.into()]).await?.map(|row| row.time(0)).transpose()?;
    let (mut stale, mut alive) = (Vec::new(), Vec::new());
    match holder.retired_at {
        Some(retired) => stale.push(format!("The holder was retired at {retired}.")),
        None if holder.active_at.after(INACTIVE) < now => {
            stale.push(format!("The holder was last active at {}.", holder.active_at));
        }
        None => alive.push(format!("The holder was active at {}.", holder.active_at)),
    }
    match last_sent {
        Some(sent) if sent.after(MAIL_GRACE) >= now => alive.push(format!("The holder sent a message at {sent}.")),
        Some(sent) => stale.push(format!("The holder last sent a message at {sent}.")),
        None => stale.push("The holder has sent no message.".to_owned()),
    }
    let at = |seconds: i64| Time::from_micros(seconds.saturating_mul(1_000_000));
    match looked {
        Some(Looked { sign: Some(Sign::Changed { path, at_s }), .. }) => {
            alive.push(format!("The file {path} was changed at {}.", at(*at_s)));
        }
        Some(Looked { sign: Some(Sign::Committed { path, at_s }), .. }) => {
            alive.push(format!("The file {path} was committed at {}.", at(*at_s)));
        }
        Some(Looked { sign: None, is_partial: false }) => {
            stale.push("None of its files was changed or committed lately.".to_owned());
        }
        Some(Looked { sign: None, is_partial: true }) => {
            stale.push(format!("None of its first {LOOKED_MAX} files was changed or committed lately."));
        }
        None => {}
    }
    if alive.is_empty() {
        return Ok(stale);
    }
    let message = format!("The reservation of {} by {} is in use. {}", held.path, holder.name, alive.join(" "));
    let error = Error::new(Code::ReservationActive, message).with("reasons", json!(alive));
    Err(error.with("holder", holder.name.as_str()).with("expires_ts", held.expires_at.to_string()))
}

/// A message like any other, which no policy keeps from its reader: it says what was done to them.
async fn notify(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    project: &Project,
    from: &Agent,
    to: &Agent,
    held: &Reservation,
    note: &str,
) -> Result<i64> {
    let mut body = format!(
        "{} has ended your reservation {} of `{}`. Reserve the files again before you go on with them.",
        from.name, held.id, held.path
    );
    if !note.is_empty() {
        body.push_str(&format!("\n\n{note}"));
    }
    let recipients = [Recipient { kind: Kind::To, agent: to.clone(), project: project.clone() }];
    let message = Outgoing {
        project,
        sender: from,
        recipients: &recipients,
        subject: "A reservation of yours was ended",
        body: &body,
        importance: Importance::Normal,
        ack_required: false,
        thread: None,
        reply_to: None,
        files: &Files::NONE,
        // It does not make the two acquainted.
        intro: true,
    };
    deliver(ctx, tx, &message).await.map(|payload| payload.id)
}
