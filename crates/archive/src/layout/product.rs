//! A product and the projects that belong to it. Products are the tenant's and no project's, so they lie in the tenant's own archive
//! ([`super::TENANT`]).

use serde::{Deserialize, Serialize};
use waybill_kernel::Time;

use super::json;
use crate::error::Result;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Product {
    pub id: i64,
    pub key: String,
    pub name: String,
    #[serde(with = "json::timestamp")]
    pub created_ts: Time,
    /// In the order of their slugs.
    pub projects: Vec<LinkedProject>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkedProject {
    pub slug: String,
    #[serde(with = "json::timestamp")]
    pub linked_ts: Time,
}

impl Product {
    pub fn write(&self) -> Result<Vec<u8>> {
        json::write(self)
    }

    pub fn read(text: &[u8]) -> Result<Self> {
        json::read(text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_product_comes_back(id in 0..i64::MAX, name in "\\PC{1,40}", at in 0..4_000_000_000_000_000_i64, slugs in proptest::collection::vec("[a-z-]{1,20}", 0..4)) {
            let at = Time::from_micros(at);
            let projects = slugs.into_iter().map(|slug| LinkedProject { slug, linked_ts: at }).collect();
            let product = Product { id, key: "shop".to_owned(), name, created_ts: at, projects };
            prop_assert_eq!(Product::read(&product.write().unwrap()).unwrap(), product);
        }
    }
}
