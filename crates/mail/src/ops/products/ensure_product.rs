//! A product by its key, made if there is none.

use schemars::JsonSchema;
use serde::Deserialize;
use waybill_kernel::{Error, Example, OperationSpec, Profile, Result, Route};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use super::{KEY_CHARS_MAX, NAME_CHARS_MAX, Product, check_key, product};
use crate::archive_rows::{ArchiveKind, NO_PROJECT, note};
use crate::rules::projects::slug;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnsureProduct {
    /// Letters, digits, dots, underscores and hyphens. Left out, it is made from the name.
    #[schemars(length(min = 1, max = 64))]
    pub product_key: Option<String>,
    /// For people; the key unless given. A product that exists keeps its name.
    #[schemars(length(max = 200))]
    pub name: Option<String>,
}

impl Operation for EnsureProduct {
    const SPEC: OperationSpec = OperationSpec {
        name: "ensure_product",
        route: Route::post("/v1/mail/products"),
        profile: Profile::Full,
        repeatable: true,
        title: "Make sure that a product exists",
        description: "Makes a product, to which several projects can be linked, or finds it.",
        example: Example {
            arguments: r#"{"product_key": "shop", "name": "The shop"}"#,
            answer: r#"{"id": 1, "product_key": "shop", "name": "The shop", "created_at": "2026-01-05T12:30:00.000000Z"}"#,
        },
        ..super::WRITE
    };
    type Output = Product;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Product>> {
        const INSERT: &str = "INSERT INTO mail_products (tenant, key, name, created_at) VALUES ($1, $2, $3, $4) \
                              ON CONFLICT (tenant, key) DO NOTHING";
        let name = self.name.as_deref().map(str::trim).filter(|name| !name.is_empty());
        let key = match (&self.product_key, name) {
            (Some(key), _) => key.clone(),
            (None, Some(name)) => slug(name).chars().take(KEY_CHARS_MAX).collect(),
            (None, None) => return Err(Error::invalid("product_key or name must be given.")),
        };
        check_key(&key)?;
        let name = name.unwrap_or(&key);
        if name.chars().count() > NAME_CHARS_MAX {
            return Err(Error::invalid(format!("name must have at most {NAME_CHARS_MAX} characters.")));
        }
        let made = tx.execute(INSERT, &[Value::from(&key), Value::from(name), ctx.now.into()]).await? == 1;
        let product = product(tx, &key).await?;
        if made {
            note(tx, ctx.now, NO_PROJECT, ArchiveKind::Product, product.id).await?;
        }
        Ok(Reply::Done(product))
    }
}
