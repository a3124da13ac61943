//! The one way from a door to an operation: authorise from SPEC, check the input's shape, run, wait.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value as Json;
use waybill_kernel::{Caller, Code, Error, Result};
use waybill_store::{Answer, Entry, Registry, Store};

use crate::log;
use crate::metrics::OperationMeters;

/// Deeper JSON is refused: no honest request has it, and every later reader would have to survive it.
const DEPTH_MAX: usize = 64;

const RESERVED: &str = "$serde_json::private::";

#[derive(Clone)]
pub struct Driver(Arc<Inner>);

struct Inner {
    registry: Registry,
    store: Store,
    answer_max: Duration,
    meters: OperationMeters,
}

impl Driver {
    pub fn new(registry: Registry, store: Store, answer_max: Duration) -> Self {
        let meters = OperationMeters::new(&registry);
        Self(Arc::new(Inner { registry, store, answer_max, meters }))
    }

    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }

    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// `input` is the object of arguments, from whichever door.
    pub async fn call(&self, entry: &dyn Entry, caller: &Caller, input: Json) -> Result<Answer> {
        let outcome = self.run(entry, caller, input).await;
        if let Err(error) = &outcome {
            log::refusal(entry.spec().name, caller, error);
        }
        self.0.meters.count(entry.spec().name, outcome.as_ref().err().map(Error::code));
        outcome
    }

    async fn run(&self, entry: &dyn Entry, caller: &Caller, input: Json) -> Result<Answer> {
        entry.spec().authorise(caller)?;
        check_shape(&input)?;
        let call = entry.call(&self.0.store, caller, input);
        tokio::time::timeout(self.0.answer_max, call).await.unwrap_or_else(|_| {
            let message = "The answer took too long; the write may or may not have been made.";
            Err(Error::new(Code::Unavailable, message))
        })
    }
}

/// What no database takes (NUL) and what no request needs (great depth), the same on every door.
pub(crate) fn check_shape(input: &Json) -> Result<()> {
    if !input.is_object() {
        return Err(Error::invalid("The request must be a JSON object."));
    }
    let mut rest = vec![(input, 1)];
    while let Some((value, depth)) = rest.pop() {
        if depth > DEPTH_MAX {
            return Err(Error::invalid(format!("The request is nested more than {DEPTH_MAX} levels deep.")));
        }
        match value {
            Json::String(text) => refuse_nul(text)?,
            Json::Array(items) => rest.extend(items.iter().map(|item| (item, depth + 1))),
            Json::Object(fields) => {
                for (name, field) in fields {
                    refuse_nul(name)?;
                    // serde_json would take what follows for JSON in its raw form, and read it again past these bounds.
                    if name.starts_with(RESERVED) {
                        return Err(Error::invalid(format!("A field's name must not begin with {RESERVED}.")));
                    }
                    rest.push((field, depth + 1));
                }
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => {}
        }
    }
    Ok(())
}

fn refuse_nul(text: &str) -> Result<()> {
    if text.contains('\0') { Err(Error::invalid("A text holds a NUL character.")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nul_depth_and_non_objects_are_refused() {
        let mut deep = json!(1);
        for _ in 0..DEPTH_MAX {
            deep = json!([deep]);
        }
        for bad in [json!([1]), json!("x"), json!({"a": "x\u{0}"}), json!({"a\u{0}": 1}), json!({ "a": deep })] {
            assert_eq!(check_shape(&bad).unwrap_err().code(), Code::InvalidRequest);
        }
        check_shape(&json!({"a": {"b": ["c", null, 1.5]}})).unwrap();
        let hidden = json!({"payload": {"$serde_json::private::RawValue": "[[1]]"}});
        assert_eq!(check_shape(&hidden).unwrap_err().code(), Code::InvalidRequest);
    }
}
