//! Operations on queues as the doors call them: in home, where the queue is in home alone, and otherwise in the stores that
//! its partitions are in.

use std::borrow::Cow;
use std::future::Future;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer};
use waybill_kernel::OperationSpec;
use waybill_store::{Answered, Flow, Operation, Procedure};

/// The same request and the same answer as the operation's.
#[derive(Debug)]
pub struct Placed<O>(pub O);

/// An operation that knows what to do where the partitions of its queue are in several stores.
pub trait OnShards: Operation {
    fn dispatch(self, flow: &Flow<'_>) -> impl Future<Output = Answered<Self::Output>> + Send;
}

impl<O: OnShards> Procedure for Placed<O> {
    const SPEC: OperationSpec = <O as Operation>::SPEC;
    type Output = <O as Operation>::Output;
    const SUCCESSOR: Option<&'static str> = <O as Operation>::SUCCESSOR;
    const REPLAYS: bool = <O as Operation>::REPLAYS;

    fn call(self, flow: &Flow<'_>) -> impl Future<Output = Answered<Self::Output>> + Send {
        self.0.dispatch(flow)
    }
}

impl<'de, O: Deserialize<'de>> Deserialize<'de> for Placed<O> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        O::deserialize(deserializer).map(Self)
    }
}

impl<O: JsonSchema> JsonSchema for Placed<O> {
    fn schema_name() -> Cow<'static, str> {
        O::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        O::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        O::json_schema(generator)
    }
}

/// For those that have to do with the catalog alone, all of which is in home.
macro_rules! all_at_home {
    ($($operation:ty),+ $(,)?) => {
        $(impl $crate::shards::OnShards for $operation {
            async fn dispatch(self, flow: &::waybill_store::Flow<'_>) -> ::waybill_store::Answered<<Self as ::waybill_store::Operation>::Output> {
                flow.home().run_in_turn(self, flow.caller.clone()).await
            }
        })+
    };
}
pub(crate) use all_at_home;
