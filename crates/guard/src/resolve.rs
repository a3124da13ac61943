//! Where addresses come from, and how a client is held to those that were judged.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::Guard;

pub trait Resolver: Send + Sync {
    fn resolve(&self, host: &str) -> impl Future<Output = io::Result<Vec<IpAddr>>> + Send;
}

pub struct SystemResolver;

impl Resolver for SystemResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((host, 0)).await?.map(|address| address.ip()).collect())
    }
}

/// Gives every name the addresses that were judged: for a client that makes one request.
pub struct Judged(pub Vec<SocketAddr>);

impl Resolve for Judged {
    fn resolve(&self, _: Name) -> Resolving {
        let addresses = self.0.clone();
        Box::pin(async move { Ok(Box::new(addresses.into_iter()) as Addrs) })
    }
}

/// Judges at every lookup: for a client that is kept. It connects to what it is given here and looks nothing up itself; a URL
/// that has an address instead of a name never comes by, and is for [`Guard::check`].
pub struct Judging<R>(Arc<Guard<R>>);

impl<R: Resolver + 'static> Judging<R> {
    pub fn new(guard: impl Into<Arc<Guard<R>>>) -> Self {
        Self(guard.into())
    }
}

impl<R: Resolver + 'static> Resolve for Judging<R> {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = Arc::clone(&self.0);
        Box::pin(async move {
            let addresses = guard.resolve(name.as_str()).await?;
            // The client puts the URL's port in the place of none.
            Ok(Box::new(addresses.into_iter().map(|ip| SocketAddr::new(ip, 0))) as Addrs)
        })
    }
}
