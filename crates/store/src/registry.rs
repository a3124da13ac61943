//! The only list of operations, with their types erased so that a door can hold them all.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::Value as Json;
use waybill_kernel::{Caller, Error, OperationSpec, Result, Route};

use crate::decode::decode;
use crate::shares::Share;
use crate::{Operation, Reply, Store, Turn};

/// What a door encodes.
pub struct Answer {
    /// The output as JSON text.
    pub json: String,
    /// True when it is the answer of an earlier request with the same key.
    pub replay: bool,
    /// A reader's turn, for a door to keep until it has found room for the answer: no more answers are made than find it.
    pub turn: Option<Share>,
}

/// One operation as the doors see it.
pub trait Entry: Send + Sync {
    fn spec(&self) -> &'static OperationSpec;
    fn input_schema(&self) -> Json;
    fn output_schema(&self) -> Json;
    /// The path that takes its place, if it is deprecated.
    fn successor(&self) -> Option<&'static str>;
    /// May an answer be that of an earlier request?
    fn replays(&self) -> bool;
    /// Decodes, runs, encodes. The caller has been authorised, and `input` is JSON of bounded depth.
    fn call<'a>(&'a self, store: &'a Store, caller: &'a Caller, input: &'a str) -> BoxFuture<'a, Result<Answer>>;
}

/// An operation that is run again and again for one caller, each run going on where the one before has ended.
pub trait StreamEntry: Send + Sync {
    fn spec(&self) -> &'static OperationSpec;
    fn input_schema(&self) -> Json;
    /// One run. The caller has been authorised.
    fn turn<'a>(&'a self, store: &'a Store, caller: &'a Caller, input: &'a str) -> BoxFuture<'a, Result<Turn>>;
}

struct Typed<O>(std::marker::PhantomData<fn() -> O>);

impl<O: Operation> Entry for Typed<O> {
    fn spec(&self) -> &'static OperationSpec {
        const { &O::SPEC }
    }

    fn input_schema(&self) -> Json {
        schema_of::<O>()
    }

    fn output_schema(&self) -> Json {
        schema_of::<O::Output>()
    }

    fn successor(&self) -> Option<&'static str> {
        O::SUCCESSOR
    }

    fn replays(&self) -> bool {
        O::REPLAYS
    }

    fn call<'a>(&'a self, store: &'a Store, caller: &'a Caller, input: &'a str) -> BoxFuture<'a, Result<Answer>> {
        Box::pin(async move {
            let operation: O = decode(input)?;
            let (reply, turn) = store.run_in_turn(operation, caller.clone()).await?;
            let (output, replay) = match reply {
                Reply::Done(output) | Reply::Empty { answer: output, .. } => (output, false),
                Reply::Replay(output) => {
                    debug_assert!(O::REPLAYS, "{} replays and does not say so", O::SPEC.name);
                    (output, true)
                }
            };
            let json = serde_json::to_string(&output).map_err(Error::internal)?;
            Ok(Answer { json, replay, turn })
        })
    }
}

impl<O: Operation<Output = Turn>> StreamEntry for Typed<O> {
    fn spec(&self) -> &'static OperationSpec {
        const { &O::SPEC }
    }

    fn input_schema(&self) -> Json {
        schema_of::<O>()
    }

    fn turn<'a>(&'a self, store: &'a Store, caller: &'a Caller, input: &'a str) -> BoxFuture<'a, Result<Turn>> {
        Box::pin(async move {
            let operation: O = decode(input)?;
            match store.run(operation, caller.clone()).await? {
                Reply::Done(turn) | Reply::Replay(turn) | Reply::Empty { answer: turn, .. } => Ok(turn),
            }
        })
    }
}

fn schema_of<T: schemars::JsonSchema>() -> Json {
    let generator =
        schemars::generate::SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = generator.into_generator().into_root_schema_for::<T>().to_value();
    if let Some(object) = schema.as_object_mut() {
        // The dialect is the default of both OpenAPI 3.1 and MCP, and a type's Rust name is nobody's business.
        object.remove("$schema");
        object.remove("title");
    }
    schema
}

#[derive(Clone, Default)]
pub struct Registry {
    operations: Vec<Arc<dyn Entry>>,
    streams: Vec<Arc<dyn StreamEntry>>,
}

impl Registry {
    /// # Panics
    /// When the name or the route is taken: two operations would answer to one call.
    #[must_use]
    pub fn with<O: Operation>(mut self) -> Self {
        self.refuse_taken(const { &O::SPEC });
        self.operations.push(Arc::new(Typed::<O>(std::marker::PhantomData)));
        self
    }

    /// # Panics
    /// As `with`.
    #[must_use]
    pub fn with_stream<O: Operation<Output = Turn>>(mut self) -> Self {
        self.refuse_taken(const { &O::SPEC });
        self.streams.push(Arc::new(Typed::<O>(std::marker::PhantomData)));
        self
    }

    fn refuse_taken(&self, spec: &OperationSpec) {
        assert!(spec.route != Route::NONE, "{} has no route, and is not for every door", spec.name);
        let taken = |other: &OperationSpec| other.name == spec.name || other.route == spec.route;
        let mut known =
            self.operations.iter().map(|entry| entry.spec()).chain(self.streams.iter().map(|entry| entry.spec()));
        assert!(!known.any(taken), "{} is registered twice", spec.name);
    }

    pub fn entries(&self) -> impl Iterator<Item = &Arc<dyn Entry>> {
        self.operations.iter()
    }

    /// What a door gives out as it comes.
    pub fn streams(&self) -> impl Iterator<Item = &Arc<dyn StreamEntry>> {
        self.streams.iter()
    }

    pub fn find(&self, name: &str) -> Option<&Arc<dyn Entry>> {
        self.entries().find(|entry| entry.spec().name == name)
    }
}
