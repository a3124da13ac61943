//! A product by its key, made if there is none.

use schemars::JsonSchema;
use serde::Deserialize;
use waybill_kernel::{Error, Example, OperationSpec, Profile, Result, Route};
use waybill_store::{Ctx, Operation, Reply, Tx, Value};

use super::{NAME_CHARS_MAX, Product, check_key, product};
use crate::archive_rows::{ArchiveKind, NO_PROJECT, note};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnsureProduct {
    /// Letters, digits, dots, underscores and hyphens.
    #[schemars(length(min = 1, max = 64))]
    pub product_key: String,
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
        check_key(&self.product_key)?;
        let name = self.name.as_deref().map(str::trim).filter(|name| !name.is_empty()).unwrap_or(&self.product_key);
        if name.chars().count() > NAME_CHARS_MAX {
            return Err(Error::invalid(format!("name must have at most {NAME_CHARS_MAX} characters.")));
        }
        let made = tx.execute(INSERT, &[Value::from(&self.product_key), Value::from(name), ctx.now.into()]).await? == 1;
        let product = product(tx, &self.product_key).await?;
        if made {
            note(tx, ctx.now, NO_PROJECT, ArchiveKind::Product, product.id).await?;
        }
        Ok(Reply::Done(product))
    }
}
