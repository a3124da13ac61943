//! The only list of operations, with their types erased so that a door can hold them all.

use std::borrow::Cow;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::Value as Json;
use waybill_kernel::{Caller, Error, Mode, OperationSpec, Result, Route};

use crate::decode::decode;
use crate::domain::Naming;
use crate::shares::Share;
use crate::{Domain, Flow, Operation, Procedure, Reply, Store, Stores, Turn};

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
    fn call<'a>(&'a self, stores: &'a Stores, caller: &'a Caller, input: &'a str) -> BoxFuture<'a, Result<Answer>>;
}

/// An operation that is run again and again for one caller, each run going on where the one before has ended.
pub trait StreamEntry: Send + Sync {
    fn spec(&self) -> &'static OperationSpec;
    fn input_schema(&self) -> Json;
    /// One run. The caller has been authorised.
    fn turn<'a>(&'a self, store: &'a Store, caller: &'a Caller, input: &'a str) -> BoxFuture<'a, Result<Turn>>;
}

struct Typed<O>(std::marker::PhantomData<fn() -> O>);

impl<P: Procedure> Entry for Typed<P> {
    fn spec(&self) -> &'static OperationSpec {
        const { &P::SPEC }
    }

    fn input_schema(&self) -> Json {
        schema_of::<P>()
    }

    fn output_schema(&self) -> Json {
        schema_of::<P::Output>()
    }

    fn successor(&self) -> Option<&'static str> {
        P::SUCCESSOR
    }

    fn replays(&self) -> bool {
        P::REPLAYS
    }

    fn call<'a>(&'a self, stores: &'a Stores, caller: &'a Caller, input: &'a str) -> BoxFuture<'a, Result<Answer>> {
        Box::pin(async move {
            let procedure: P = decode(input)?;
            let (reply, turn) = procedure.call(&Flow::new(caller, stores)).await?;
            let (output, replay) = match reply {
                Reply::Done(output) | Reply::Empty { answer: output, .. } => (output, false),
                Reply::Replay(output) => {
                    debug_assert!(P::REPLAYS, "{} replays and does not say so", P::SPEC.name);
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
    domains: Vec<Domain>,
    operations: Vec<Arc<dyn Entry>>,
    streams: Vec<Arc<dyn StreamEntry>>,
    /// Ids of those that are no tools here.
    not_tools: Vec<&'static str>,
}

impl Registry {
    /// A domain with all its operations.
    #[must_use]
    pub fn with_domain(mut self, domain: &Domain) -> Self {
        self.domains.push(*domain);
        (domain.register)(self)
    }

    /// # Panics
    /// When the name, the route or the address of a resource is taken: two operations would answer to one call.
    #[must_use]
    pub fn with<P: Procedure>(mut self) -> Self {
        self.refuse_taken(const { &P::SPEC });
        self.operations.push(Arc::new(Typed::<P>(std::marker::PhantomData)));
        self
    }

    /// # Panics
    /// As `with`.
    #[must_use]
    pub fn with_stream<O: Operation<Output = Turn>>(mut self) -> Self {
        self.refuse_taken(const { &<O as Operation>::SPEC });
        self.streams.push(Arc::new(Typed::<O>(std::marker::PhantomData)));
        self
    }

    /// Not offered as tools by this server, by their ids; whoever knows another way calls them all the same and is told why not.
    #[must_use]
    pub fn without_tools(mut self, ids: &[&'static str]) -> Self {
        self.not_tools.extend(ids);
        self
    }

    pub fn is_tool(&self, spec: &OperationSpec) -> bool {
        spec.tool && !self.not_tools.contains(&self.id(spec).as_ref())
    }

    fn refuse_taken(&self, spec: &OperationSpec) {
        assert!(spec.route != Route::NONE, "{} has no route, and is not for every door", spec.name);
        assert!(spec.resources.is_empty() || spec.mode == Mode::Read, "{} writes, and is no resource", spec.name);
        let addresses = |spec: &OperationSpec| -> Vec<String> {
            spec.resources.iter().map(|resource| shape(resource.path())).collect()
        };
        let (id, resources) = (self.id(spec), addresses(spec));
        let taken = |other: &OperationSpec| {
            let same_name = self.id(other) == id || (other.name == spec.name && other.domain == spec.domain);
            same_name || other.route == spec.route || addresses(other).iter().any(|other| resources.contains(other))
        };
        let mut known =
            self.operations.iter().map(|entry| entry.spec()).chain(self.streams.iter().map(|entry| entry.spec()));
        assert!(!known.any(taken), "{id} is registered twice");
    }

    pub fn domains(&self) -> impl Iterator<Item = &Domain> {
        self.domains.iter()
    }

    pub fn entries(&self) -> impl Iterator<Item = &Arc<dyn Entry>> {
        self.operations.iter()
    }

    /// What a door gives out as it comes.
    pub fn streams(&self) -> impl Iterator<Item = &Arc<dyn StreamEntry>> {
        self.streams.iter()
    }

    /// The operation's name among those of all domains: its own, behind the name of a domain that keeps its names to itself.
    pub fn id(&self, spec: &OperationSpec) -> Cow<'static, str> {
        let domain = self.domains.iter().find(|domain| domain.name == spec.domain);
        match domain.and_then(|domain| domain.mcp) {
            Some(mcp) if mcp.names == Naming::OfDomain => Cow::Owned(format!("{}.{}", spec.domain, spec.name)),
            _ => Cow::Borrowed(spec.name),
        }
    }

    /// By its id, or as `domain.name`. A name alone finds an operation of a domain that keeps its names to itself only
    /// if no other has it.
    pub fn find(&self, name: &str) -> Option<&Arc<dyn Entry>> {
        let whole = |spec: &OperationSpec| match name.split_once('.') {
            Some((domain, name)) => (spec.domain, spec.name) == (domain, name),
            None => self.id(spec) == name,
        };
        self.entries().find(|entry| whole(entry.spec())).or_else(|| {
            let mut by_name = self.entries().filter(|entry| entry.spec().name == name);
            by_name.next().filter(|_| by_name.next().is_none())
        })
    }
}

/// An address with its variable parts alike, since names do not tell two of them apart.
fn shape(path: &str) -> String {
    path.split('/').map(|part| if part.starts_with('{') { "{}" } else { part }).collect::<Vec<_>>().join("/")
}
