//! Products: several projects that belong together, looked through at once.

use schemars::JsonSchema;
use serde::Serialize;
use waybill_kernel::{Code, Error, Result, Time};
use waybill_store::{Ctx, Registry, Row, Tx, Value};

use crate::acting::{Agent, Project, find_agent, may_act, project_columns};

pub mod ensure_product;
pub mod fetch_inbox_product;
pub mod products_link;
pub mod search_messages_product;
pub mod summarize_thread_product;

pub(crate) use super::files::{READ, WRITE};

pub(crate) fn register(registry: Registry) -> Registry {
    registry
        .with::<ensure_product::EnsureProduct>()
        .with::<products_link::ProductsLink>()
        .with::<search_messages_product::SearchMessagesProduct>()
        .with::<fetch_inbox_product::FetchInboxProduct>()
        .with::<summarize_thread_product::SummarizeThreadProduct>()
}

/// Of one product: a search looks into each of them.
const PROJECTS_MAX: i64 = 50;
const KEY_CHARS_MAX: usize = 64;
const NAME_CHARS_MAX: usize = 200;

#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Product {
    pub id: i64,
    /// What calls name it by.
    pub product_key: String,
    pub name: String,
    pub created_at: Time,
}

impl Product {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            id: row.int(0)?,
            product_key: row.text(1)?.to_owned(),
            name: row.text(2)?.to_owned(),
            created_at: row.time(3)?,
        })
    }
}

async fn find_product(tx: &mut Tx<'_>, key: &str) -> Result<Option<Product>> {
    const BY_KEY: &str = "SELECT product, key, name, created_at FROM mail_products WHERE tenant = $1 AND key = $2";
    let row = tx.query_opt(BY_KEY, &[Value::from(key.trim())]).await?;
    row.as_ref().map(Product::read).transpose()
}

async fn product(tx: &mut Tx<'_>, key: &str) -> Result<Product> {
    find_product(tx, key).await?.ok_or_else(|| {
        Error::new(Code::NotFound, "No such product.").with_cure("Create it with ensure_product, or check its key.")
    })
}

/// The projects of a product, in the order of their numbers.
async fn projects(tx: &mut Tx<'_>, product: &Product) -> Result<Vec<Project>> {
    const LINKED: &str = concat!(
        "SELECT ",
        project_columns!(),
        " FROM mail_product_projects l JOIN mail_projects p ON p.tenant = $1 AND p.project = l.project \
         WHERE l.tenant = $1 AND l.product = $2 ORDER BY l.project LIMIT $3"
    );
    let rows = tx.query(LINKED, &[product.id.into(), PROJECTS_MAX.into()]).await?;
    rows.iter().map(Project::read).collect()
}

/// The agent of this name in the project, if the caller may act for it: the same name in another project may be another
/// principal's, and a token is that of one of them.
async fn own_agent(
    ctx: &Ctx<'_>,
    tx: &mut Tx<'_>,
    project: &Project,
    name: &str,
    token: Option<&str>,
) -> Result<Option<Agent>> {
    let found = find_agent(tx, project.id, name).await?;
    Ok(found.filter(|agent| may_act(ctx, agent, token).is_ok() || may_act(ctx, agent, None).is_ok()))
}

/// No agent of the caller has the name anywhere in the product.
fn nobody() -> Error {
    Error::new(Code::NotFound, "No agent of yours has that name in the product's projects.")
}

/// Letters, digits, dots, underscores and hyphens.
fn check_key(key: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if key.is_empty() || key.len() > KEY_CHARS_MAX || !key.chars().all(plain) {
        return Err(Error::invalid(format!(
            "product_key must have 1 to {KEY_CHARS_MAX} letters, digits, dots, underscores and hyphens."
        )));
    }
    Ok(())
}
