//! Link: a project is part of a product from now on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Code, Error, Example, OperationSpec, Profile, Result, Route, Time};
use waybill_store::{Ctx, Operation, Reply, Sql, Tx, Value};

use super::{PROJECTS_MAX, Product, product};
use crate::acting;
use crate::archive_rows::{ArchiveKind, NO_PROJECT, note};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProductsLink {
    pub product_key: String,
    /// The project's absolute path or slug.
    pub project_key: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Linked {
    pub product: Product,
    /// The project's slug.
    pub project: String,
    pub linked_at: Time,
}

impl Operation for ProductsLink {
    const SPEC: OperationSpec = OperationSpec {
        name: "products_link",
        route: Route::post("/v1/mail/products/link"),
        profile: Profile::Full,
        repeatable: true,
        title: "Link a project to a product",
        description: "Makes a project part of a product, at most 50 of them. Safe to repeat.",
        example: Example {
            arguments: r#"{"product_key": "shop", "project_key": "/data/projects/backend"}"#,
            answer: r#"{"product": {"id": 1, "product_key": "shop", "name": "The shop",
                "created_at": "2026-01-05T12:30:00.000000Z"}, "project": "data-projects-backend",
                "linked_at": "2026-01-05T12:31:00.000000Z"}"#,
        },
        ..super::WRITE
    };
    type Output = Linked;

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Reply<Linked>> {
        // Two who count at the same time would both find room for the last one.
        const LOCK: Sql = Sql {
            sqlite: "SELECT 1 FROM mail_products WHERE tenant = $1 AND product = $2",
            postgres: "SELECT 1 FROM mail_products WHERE tenant = $1 AND product = $2 FOR NO KEY UPDATE",
        };
        const LINK: &str = "INSERT INTO mail_product_projects (tenant, product, project, linked_at) SELECT $1, $2, $3, $4 \
            WHERE (SELECT count(*) FROM mail_product_projects WHERE tenant = $1 AND product = $2) < $5 \
            ON CONFLICT (tenant, product, project) DO NOTHING";
        const LINKED: &str =
            "SELECT linked_at FROM mail_product_projects WHERE tenant = $1 AND product = $2 AND project = $3";
        let product = product(tx, &self.product_key).await?;
        let project = acting::project(tx, &self.project_key).await?;
        let lock = tx.text(LOCK);
        tx.query_opt(lock, &[product.id.into()]).await?;
        let params = [product.id.into(), Value::from(project.id), ctx.now.into(), PROJECTS_MAX.into()];
        if tx.execute(LINK, &params).await? == 1 {
            note(tx, ctx.now, NO_PROJECT, ArchiveKind::Product, product.id).await?;
        }
        let Some(row) = tx.query_opt(LINKED, &params[..2]).await? else {
            let message = format!("The product has {PROJECTS_MAX} projects, which is as many as it may have.");
            return Err(Error::new(Code::TooManyProjects, message).with("limit", PROJECTS_MAX));
        };
        Ok(Reply::Done(Linked { product, project: project.slug, linked_at: row.time(0)? }))
    }
}
