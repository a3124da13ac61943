//! What comes with a message: decoded, read from the project's folder and made smaller before the transaction, which it would
//! hold up.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::ops::Range;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};
use tokio::sync::{Semaphore, SemaphorePermit};
use waybill_checkout::Checkout;
use waybill_kernel::idempotency::Fingerprint;
use waybill_kernel::{Code, Error, OperationSpec, Result, Role, Scope, hex};
use waybill_store::{Answered, Ctx, Flow, Operation, Procedure, Reply, Tx};

use crate::acting;
use crate::images::{Format, as_webp};
use crate::rules::pictures::{self, Source};
use crate::sending::{File, Files, Named, check_name, decoded};
use crate::{Settings, keys, rules};

/// Messages whose files are decoded at a time: each may take a hundred megabytes while it lasts.
static DECODING: Semaphore = Semaphore::const_new(4);

/// What a picture that was in the text as data is shown from: the number behind it is the place among the message's attachments.
const ATTACHED: &str = "attachment:";

/// What a call that writes a message brings along.
pub struct Enclosed<'a> {
    /// Files as bytes, which are taken out of the call.
    pub attachments: &'a mut Vec<File>,
    /// Files by their paths, which are taken out of it.
    pub attachment_paths: &'a mut Option<Vec<String>>,
    /// Its pictures come along; those that it has as data are then shown from there.
    pub body: &'a mut String,
    /// As the caller said; the setting decides otherwise.
    pub convert_images: Option<bool>,
    /// What it all comes to, for the transaction.
    pub files: &'a mut Files,
    pub given: &'a mut Given,
}

/// What is remembered of the call as its caller gave it, when things were taken out of it.
#[derive(Debug, Default)]
pub struct Given {
    /// What a key stands for. None where there is no key, and where nothing was taken out.
    fingerprint: Option<Fingerprint>,
    /// The key is known, so nothing was read.
    is_unread: bool,
}

impl Given {
    /// The key of the call with what it stands for.
    pub(crate) fn keyed<'a>(&self, call: &'a impl Attaches) -> Result<Option<(&'a str, Fingerprint)>> {
        let Some(key) = call.key() else { return Ok(None) };
        let fingerprint = self.fingerprint.map_or_else(|| Fingerprint::of(&call.meaning()), Ok)?;
        Ok(Some((key, fingerprint)))
    }

    /// Before anything is written: a key that was known when the call came may have been forgotten since.
    pub(crate) fn check_read(&self) -> Result<()> {
        match self.is_unread {
            false => Ok(()),
            true => Err(Error::new(Code::Overloaded, "The idempotency key was forgotten while the call was made.")),
        }
    }
}

/// Whom the call acts for.
#[derive(Clone, Debug, Default)]
pub struct Whose {
    pub project_key: String,
    pub agent_name: String,
    pub token: Option<String>,
}

impl Whose {
    pub fn new(project_key: &str, agent_name: &str, token: Option<&str>) -> Self {
        let [project_key, agent_name] = [project_key, agent_name].map(str::to_owned);
        Self { project_key, agent_name, token: token.map(str::to_owned) }
    }
}

/// An operation that writes a message.
pub trait Attaches: Operation {
    fn whose(&self) -> Whose;
    fn enclosed(&mut self) -> Enclosed<'_>;
    /// Its idempotency key.
    fn key(&self) -> Option<&str>;
    /// Everything that makes this call this call, as its caller gave it: the key stands for it.
    fn meaning(&self) -> Json;
}

/// Adds to the meaning of a call what comes along. Files on the disk are meant by their paths, so that a repeated call is the same whatever
/// has become of them.
pub(crate) fn add_given(meaning: &mut Json, files: &[File], paths: Option<&[String]>, convert_images: Option<bool>) {
    let digest = |file: &File| {
        let sha256: [u8; 32] = Sha256::digest(&file.content_base64).into();
        json!({ "name": file.name, "media_type": file.media_type, "sha256": hex::encode(&sha256) })
    };
    meaning["attachments"] = files.iter().map(digest).collect();
    if let Some(paths) = paths.filter(|paths| !paths.is_empty()) {
        meaning["attachment_paths"] = json!(paths);
    }
    if let Some(convert) = convert_images {
        meaning["convert_images"] = convert.into();
    }
}

// An operation with what comes before its transaction. No doc comment: it would be what tools say of their input.
#[derive(Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(transparent)]
pub struct Attaching<O>(O);

impl<O: Attaches> Procedure for Attaching<O> {
    const SPEC: OperationSpec = O::SPEC;
    type Output = O::Output;
    const REPLAYS: bool = O::REPLAYS;

    async fn call(self, flow: &Flow<'_>) -> Answered<O::Output> {
        let mut operation = Box::new(self.0);
        let settings: &Settings = flow.home().settings().get();
        let enclosed = operation.enclosed();
        let mut pictures = pictures::find(enclosed.body, settings.attachments_max);
        if settings.project_roots.is_empty() {
            pictures.retain(|at| is_data(&enclosed.body[at.clone()]));
        }
        let has_paths = enclosed.attachment_paths.as_ref().is_some_and(|paths| !paths.is_empty());
        if has_paths || !(enclosed.attachments.is_empty() && pictures.is_empty()) {
            operation = bring(flow, operation, pictures).await?;
        }
        flow.home().run_in_turn(*operation, flow.caller.clone()).await
    }
}

/// Reads what comes along. A call that was made before under its key needs none of it, and it may have changed or be gone.
async fn bring<O: Attaches>(flow: &Flow<'_>, operation: Box<O>, pictures: Vec<Range<usize>>) -> Result<Box<O>> {
    let settings: &Settings = flow.home().settings().get();
    let mut operation = fingerprinted(operation).await?;
    let (whose, key) = (operation.whose(), operation.key().map(str::to_owned));
    let enclosed = operation.enclosed();
    let paths = enclosed.attachment_paths.take().unwrap_or_default();
    let has_root = !settings.project_roots.is_empty();
    let reads = !paths.is_empty() || pictures.iter().any(|at| !is_data(&enclosed.body[at.clone()]));
    let located = match key.is_some() || (reads && has_root) {
        true => Some(locate(flow, whose, O::SPEC.name, key).await?),
        false => None,
    };
    let (attachments, body) = (std::mem::take(enclosed.attachments), std::mem::take(enclosed.body));
    if located.as_ref().is_some_and(|located| located.is_known) {
        enclosed.given.is_unread = true;
        return Ok(operation);
    }
    if reads && !has_root {
        return Err(not_offered("attachment_paths is not offered: this server reads no files of projects."));
    }
    let root = located.filter(|_| reads).map(|located| located.human_key.into());
    let convert = enclosed.convert_images.unwrap_or(settings.convert_images);
    let reading = Reading { settings: settings.clone(), root, attachments, paths, body, pictures, convert };
    let _place = place().await?;
    let read = tokio::task::spawn_blocking(|| reading.read());
    (*enclosed.files, *enclosed.body) = read.await.map_err(Error::internal)??;
    Ok(operation)
}

/// With what its key stands for, before anything is taken out. Files as bytes take a while to digest.
async fn fingerprinted<O: Attaches>(mut operation: Box<O>) -> Result<Box<O>> {
    if operation.key().is_none() {
        return Ok(operation);
    }
    let digest = move || -> Result<Box<O>> {
        let fingerprint = Fingerprint::of(&operation.meaning())?;
        operation.enclosed().given.fingerprint = Some(fingerprint);
        Ok(operation)
    };
    let _place = place().await?;
    tokio::task::spawn_blocking(digest).await.map_err(Error::internal)?
}

async fn place() -> Result<SemaphorePermit<'static>> {
    DECODING.acquire().await.map_err(|_| Error::new(Code::ShuttingDown, "The server is stopping."))
}

/// What is read and decoded beside the threads that serve.
struct Reading {
    settings: Settings,
    /// The project's folder, where something is read from it.
    root: Option<PathBuf>,
    attachments: Vec<File>,
    paths: Vec<String>,
    body: String,
    pictures: Vec<Range<usize>>,
    convert: bool,
}

impl Reading {
    /// The files, and the text that goes with them.
    fn read(mut self) -> Result<(Files, String)> {
        let mut files = Files::decode(&self.settings, &self.attachments)?;
        let checkout = match &self.root {
            Some(root) if self.paths.is_empty() => Checkout::open(&self.settings.roots(), root).ok().flatten(),
            Some(root) => Checkout::open(&self.settings.roots(), root)?,
            None => None,
        };
        for path in &self.paths {
            let (Some(checkout), Some(root)) = (&checkout, &self.root) else { return Err(outside()) };
            files.add(&self.settings, from_disk(&self.settings, checkout, root, path)?)?;
        }
        self.add_pictures(checkout.as_ref(), &mut files);
        if self.convert {
            files.convert(as_webp);
        }
        Ok((files, self.body))
    }

    /// Nobody asked for these by name, so none is an error: what cannot be had, is no picture or finds no room stays text. A
    /// picture by its path keeps the path, which means the same to whoever works in the project; one that is in the text as
    /// data is shown from its file.
    fn add_pictures(&mut self, checkout: Option<&Checkout>, files: &mut Files) {
        let mut known: HashMap<&str, Option<String>> = HashMap::new();
        let mut body = String::with_capacity(self.body.len());
        let mut from = 0;
        for at in &self.pictures {
            let destination = &self.body[at.clone()];
            let shown = known.entry(destination).or_insert_with(|| {
                let file = self.picture(checkout, destination, files.len())?;
                let position = files.len();
                files.add(&self.settings, file).ok()?;
                is_data(destination).then(|| format!("{ATTACHED}{position}"))
            });
            if let Some(shown) = shown {
                body.push_str(&self.body[from..at.start]);
                body.push_str(shown);
                from = at.end;
            }
        }
        body.push_str(&self.body[from..]);
        self.body = body;
    }

    fn picture(&self, checkout: Option<&Checkout>, destination: &str, position: usize) -> Option<Named> {
        match Source::of(destination)? {
            Source::Path(path) => {
                if !rules::message::media_type_of(path).starts_with("image/") {
                    return None;
                }
                let (name, _, content) = from_disk(&self.settings, checkout?, self.root.as_deref()?, path).ok()?;
                let (_, media_type) = Format::of(&content)?.names();
                Some((name, media_type.to_owned(), content))
            }
            Source::Data(base64) => {
                let content = decoded(base64, self.settings.attachment_bytes_max)?;
                let (end, media_type) = Format::of(&content)?.names();
                Some((format!("image-{position}.{end}"), media_type.to_owned(), content))
            }
        }
    }
}

/// The folder of the project and what is known of the key, for whoever may act for the agent.
async fn locate(flow: &Flow<'_>, whose: Whose, tool: &str, key: Option<String>) -> Result<Located> {
    let Whose { project_key, agent_name, token } = whose;
    let locate = Locate { project_key, agent_name, token, tool: tool.to_owned(), key };
    match flow.run(flow.home(), locate).await? {
        Reply::Done(found) | Reply::Replay(found) | Reply::Empty { answer: found, .. } => Ok(found),
    }
}

/// A picture that the text has as data, and not by a path.
fn is_data(destination: &str) -> bool {
    matches!(Source::of(destination), Some(Source::Data(_)))
}

fn outside() -> Error {
    not_offered(
        "attachment_paths is not offered for this project: its folder does not lie beneath `mail.project_roots`.",
    )
}

fn not_offered(message: &str) -> Error {
    Error::new(Code::FeatureDisabled, message).with_cure("Send each file's bytes in `attachments`, as content_base64.")
}

fn from_disk(settings: &Settings, checkout: &Checkout, root: &Path, path: &str) -> Result<Named> {
    // As the file itself is found: a path may end in what is no part of it, as in `docs/a.png/`.
    let name = Path::new(path).file_name().and_then(OsStr::to_str).unwrap_or_default().to_owned();
    let content = checkout.read(root, path, settings.attachment_bytes_max as u64)?;
    check_name(&name)?;
    let media_type = rules::message::media_type_of(&name).to_owned();
    Ok((name, media_type, content))
}

/// Where a project is, for those who may act for one of its agents.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Locate {
    pub project_key: String,
    pub agent_name: String,
    pub token: Option<String>,
    /// Whose key it is.
    pub tool: String,
    pub key: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Located {
    pub human_key: String,
    /// A call was made under the key before.
    pub is_known: bool,
}

impl Operation for Locate {
    const SPEC: OperationSpec = OperationSpec {
        name: "locate_project",
        domain: crate::NAME,
        roles: &[Role::Agent, Role::Admin, Role::System],
        scopes: &[Scope::MailRead, Scope::MailWrite],
        ..OperationSpec::READ
    };
    type Output = Located;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Located>> {
        let project = acting::project(tx, &self.project_key).await?;
        let agent = acting::act_as(ctx, tx, &project, &self.agent_name, self.token.as_deref()).await?.agent;
        let scope = keys::Scope { project: project.id, agent: agent.id, tool: &self.tool, key: self.key.as_deref() };
        let is_known = keys::is_known(ctx, tx, scope).await?;
        Ok(Reply::Done(Located { human_key: project.human_key, is_known }))
    }
}
