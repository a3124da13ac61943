//! What comes with a message: decoded, read from the project's folder and made smaller before the transaction, which it would
//! hold up.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use waybill_checkout::Checkout;
use waybill_kernel::{Code, Error, OperationSpec, Result, Role, Scope};
use waybill_store::{Answered, Ctx, Flow, Operation, Procedure, Reply, Tx};

use crate::acting;
use crate::images::as_webp;
use crate::sending::{File, Files};
use crate::{Settings, rules};

/// Messages whose files are decoded at a time: each may take a hundred megabytes while it lasts.
static DECODING: Semaphore = Semaphore::const_new(4);

/// What a call brings along, taken out of it.
pub struct Brought {
    pub files: Vec<File>,
    pub paths: Vec<String>,
    /// As the caller said; the setting decides otherwise.
    pub convert_images: Option<bool>,
    pub whose: Whose,
}

/// Whom the call acts for.
#[derive(Clone, Debug, Default)]
pub struct Whose {
    pub project_key: String,
    pub agent_name: String,
    pub token: Option<String>,
}

/// An operation that writes a message.
pub trait Attaches: Operation {
    /// What it was given, which is not in it afterwards.
    fn bring(&mut self) -> Brought;
    /// What its transaction takes.
    fn attach(&mut self, files: Files);
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
        let brought = operation.bring();
        if !(brought.files.is_empty() && brought.paths.is_empty()) {
            let files = read(flow, brought).await?;
            operation.attach(files);
        }
        flow.home().run_in_turn(*operation, flow.caller.clone()).await
    }
}

async fn read(flow: &Flow<'_>, brought: Brought) -> Result<Files> {
    let settings: Settings = flow.home().settings().get::<Settings>().clone();
    let root = match brought.paths.is_empty() {
        true => None,
        false => Some(root_of(flow, &settings, &brought.whose).await?),
    };
    let _place = DECODING.acquire().await.map_err(|_| Error::new(Code::ShuttingDown, "The server is stopping."))?;
    let decode = move || {
        let convert = brought.convert_images.unwrap_or(settings.convert_images);
        let mut files = Files::decode(&settings, &brought.files)?;
        if let Some(root) = root {
            for path in &brought.paths {
                files.add(&settings, from_disk(&settings, &root, path)?)?;
            }
        }
        if convert {
            files.convert(as_webp);
        }
        Ok(files)
    };
    tokio::task::spawn_blocking(decode).await.map_err(Error::internal)?
}

/// The folder of the project, for whoever may act for the agent.
async fn root_of(flow: &Flow<'_>, settings: &Settings, whose: &Whose) -> Result<PathBuf> {
    if settings.project_roots.is_empty() {
        let message = "attachment_paths is not offered: this server reads no files of projects.";
        return Err(Error::new(Code::FeatureDisabled, message)
            .with_cure("Send each file's bytes in `attachments`, as content_base64."));
    }
    let Whose { project_key, agent_name, token } = whose.clone();
    match flow.run(flow.home(), Locate { project_key, agent_name, token }).await? {
        Reply::Done(found) | Reply::Replay(found) | Reply::Empty { answer: found, .. } => Ok(found.human_key.into()),
    }
}

fn from_disk(settings: &Settings, root: &Path, path: &str) -> Result<(String, String, Vec<u8>)> {
    let outside = || {
        let message =
            "attachment_paths is not offered for this project: its folder does not lie beneath `mail.project_roots`.";
        Error::new(Code::FeatureDisabled, message)
            .with_cure("Send each file's bytes in `attachments`, as content_base64.")
    };
    let checkout = Checkout::open(&settings.project_roots, root)?.ok_or_else(outside)?;
    let content = checkout.read(root, path, settings.attachment_bytes_max as u64)?;
    let name = path.rsplit('/').next().unwrap_or(path).to_owned();
    let media_type = rules::message::media_type_of(&name).to_owned();
    Ok((name, media_type, content))
}

/// Where a project is, for those who may act for one of its agents.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Locate {
    pub project_key: String,
    pub agent_name: String,
    pub token: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Located {
    pub human_key: String,
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
        acting::act_as(ctx, tx, &project, &self.agent_name, self.token.as_deref()).await?;
        Ok(Reply::Done(Located { human_key: project.human_key }))
    }
}
