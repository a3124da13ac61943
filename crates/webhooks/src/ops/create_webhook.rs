//! Create a webhook. Its secret is in the answer and nowhere else, so a lost answer is a lost secret: delete it, make another.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_access::ServerKey;
use waybill_guard::Refused;
use waybill_kernel::visible::unseen;
use waybill_kernel::{Code, Entropy, Error, Example, OperationSpec, Result, Role, Route, Scope, Time};
use waybill_store::{Ctx, Operation, Reply, Topic, Tx, Value};

use crate::Settings;
use crate::secret::{self, Minted, SecretText};
use crate::webhook::{Kinds, WebhookId};

const URL_CHARS_MAX: usize = 2_048;
const DESCRIPTION_CHARS_MAX: usize = 500;
const KINDS_MAX: usize = 64;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateWebhook {
    /// Where receipts are posted to: http or https, without a user name. Names are resolved and judged at each delivery.
    #[schemars(length(min = 1, max = URL_CHARS_MAX))]
    pub url: String,
    /// The types of receipts to be told of, as in `task.completed`, and of events of meshes, as in `mesh.member_left`. Empty: all receipts.
    #[serde(default)]
    #[schemars(length(max = KINDS_MAX))]
    pub kinds: Vec<String>,
    /// For people.
    #[serde(default)]
    #[schemars(length(max = DESCRIPTION_CHARS_MAX))]
    pub description: Option<String>,

    #[serde(skip)]
    minted: Option<Minted>,
}

/// A new webhook. `secret` is shown this once and cannot be had again.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CreatedWebhook {
    pub webhook_id: WebhookId,
    pub url: String,
    /// The types of receipts, and of events of meshes, that it is told of; empty for all receipts.
    pub kinds: Vec<&'static str>,
    /// What its requests are signed with, by Standard Webhooks.
    pub secret: SecretText,
    pub created_at: Time,
}

impl CreateWebhook {
    fn checked_kinds(&self) -> Result<Kinds> {
        if self.kinds.len() > KINDS_MAX {
            return Err(Error::invalid(format!("`kinds` has at most {KINDS_MAX} entries.")));
        }
        Kinds::new(&self.kinds)
    }

    fn checked_description(&self) -> Result<Option<&str>> {
        let Some(description) = self.description.as_deref().filter(|description| !description.is_empty()) else {
            return Ok(None);
        };
        if description.chars().count() > DESCRIPTION_CHARS_MAX {
            return Err(Error::invalid(format!("`description` has at most {DESCRIPTION_CHARS_MAX} characters.")));
        }
        match unseen(description) {
            Some(why) => Err(Error::invalid(format!("`description` {why}."))),
            None => Ok(Some(description)),
        }
    }

    /// As it is sent to, which may be spelled otherwise than it was given.
    fn checked_url(&self, settings: &Settings) -> Result<String> {
        if self.url.chars().count() > URL_CHARS_MAX {
            return Err(Error::invalid(format!("`url` has at most {URL_CHARS_MAX} characters.")));
        }
        settings.guard(()).check(&self.url).map(String::from).map_err(|refused| match refused {
            Refused::Port(_) | Refused::Inner { .. } => Error::new(Code::AddressRefused, format!("`url`: {refused}.")),
            refused => Error::invalid(format!("`url`: {refused}.")),
        })
    }

    async fn insert(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>, row: &NewWebhook<'_>) -> Result<()> {
        const INSERT: &str = "INSERT INTO webhooks (tenant, webhook_id, url, kinds, description, secret, created_at, created_by) \
                              SELECT $1, $2, $3, $4, $5, $6, $7, $8 \
                              WHERE (SELECT count(*) FROM webhooks WHERE tenant = $1) < $9";
        let max = ctx.settings::<Settings>().endpoints_max;
        one_at_a_time(ctx, tx).await?;
        let params = [
            Value::from(row.id.as_bytes()),
            Value::from(row.url),
            Value::from(row.kinds.as_deref()),
            Value::from(row.description),
            Value::from(row.secret.as_slice()),
            Value::from(ctx.now),
            Value::from(&row.created_by),
            Value::from(max),
        ];
        if tx.execute(INSERT, &params).await? == 1 {
            return Ok(());
        }
        let message = format!("The tenant has {max} webhooks, which is as many as it may have.");
        Err(Error::new(Code::TooManyWebhooks, message).with("limit", max))
    }
}

/// Two who count at the same time would both find room for the last one.
async fn one_at_a_time(ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
    tx.in_turn(Topic::new("webhooks", ctx.caller.tenant, b"count")).await
}

struct NewWebhook<'a> {
    id: WebhookId,
    url: &'a str,
    kinds: Option<String>,
    description: Option<&'a str>,
    secret: Vec<u8>,
    created_by: String,
}

impl Operation for CreateWebhook {
    const SPEC: OperationSpec = OperationSpec {
        name: "create_webhook",
        domain: "webhooks",
        route: Route::post("/admin/webhooks"),
        tool: false,
        roles: &[Role::Admin],
        scopes: &[Scope::AdminWrite],
        status: 201,
        title: "Create a webhook",
        description: "Has the receipts of your tenant posted to a URL as they are written, signed by Standard Webhooks. The \
                      answer is the only place where the secret can be read: keep it.",
        example: Example {
            arguments: r#"{"url": "https://hooks.example/waybill", "kinds": ["task.completed", "task.failed"]}"#,
            answer: r#"{"webhook_id": "0198c0de-1a2b-7c3d-8e4f-5a6b7c8d9e10", "url": "https://hooks.example/waybill",
                "kinds": ["task.completed", "task.failed"], "secret": "whsec_…",
                "created_at": "2026-01-05T12:30:00.000000Z"}"#,
        },
        ..OperationSpec::WRITE
    };
    const PREPARES: bool = true;
    type Output = CreatedWebhook;

    fn prepare(&mut self, entropy: &dyn Entropy) -> Result<()> {
        self.minted = Some(Minted::new(entropy));
        Ok(())
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<CreatedWebhook>> {
        let minted = self.minted.as_ref().ok_or_else(|| Error::internal("a webhook's secret was not prepared"))?;
        let (kinds, description) = (self.checked_kinds()?, self.checked_description()?);
        let url = self.checked_url(ctx.settings())?;
        let key = secret::server_key(ctx.settings_if_given::<ServerKey>())?;
        let id = WebhookId(ctx.ids.next());
        let row = NewWebhook {
            id,
            url: &url,
            kinds: kinds.stored(),
            description,
            secret: minted.seal(key, ctx.caller.tenant, id)?,
            created_by: ctx.caller.principal.to_string(),
        };
        self.insert(ctx, tx, &row).await?;
        let (kinds, secret) = (kinds.names(), minted.reveal());
        Ok(Reply::Done(CreatedWebhook { webhook_id: id, url, kinds, secret, created_at: ctx.now }))
    }
}
