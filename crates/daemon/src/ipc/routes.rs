//! Which endpoint a request is for.

use http::Method;
use waybill_kernel::{Code, Error, Result};

use super::guard::Via;

macro_rules! endpoints {
    ($($name:ident $word:literal $($method:ident)|+ $path:literal;)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Endpoint { $($name),+ }

        impl Endpoint {
            pub const ALL: &'static [Endpoint] = &[$(Endpoint::$name),+];

            /// By which it is counted.
            pub const fn word(self) -> &'static str {
                match self { $(Endpoint::$name => $word),+ }
            }

            pub const fn path(self) -> &'static str {
                match self { $(Endpoint::$name => $path),+ }
            }

            fn allows(self, method: &Method) -> bool {
                match self { $(Endpoint::$name => $(*method == Method::$method)||+),+ }
            }
        }
    };
}

endpoints! {
    Send             "send"              POST     "/v1/send";
    TopicPost        "topic_post"        POST     "/v1/topic/post";
    TopicSubscribe   "topic_subscribe"   POST     "/v1/topic/subscribe";
    TopicUnsubscribe "topic_unsubscribe" POST     "/v1/topic/unsubscribe";
    TopicList        "topic_list"        GET      "/v1/topic/list";
    Inbox            "inbox"             GET      "/v1/inbox";
    InboxSearch      "inbox_search"      GET      "/v1/inbox/search";
    Peers            "peers"             GET      "/v1/peers";
    Profile          "profile"           GET|POST "/v1/profile";
    FileShare        "file_share"        POST     "/v1/file/share";
    FileGet          "file_get"          GET      "/v1/file/get";
    FileList         "file_list"         GET      "/v1/file/list";
    Events           "events"            GET      "/v1/events";
    Health           "health"            GET      "/v1/health";
    Metrics          "metrics"           GET      "/v1/metrics";
    Version          "version"           GET      "/v1/version";
    Compat           "compat"            GET      "/v1/compat";
    Heartbeat        "heartbeat"         GET|POST "/v1/heartbeat";
    OutboxList       "outbox_list"       GET      "/v1/admin/outbox";
    OutboxInspect    "outbox_inspect"    GET      "/v1/admin/outbox/inspect";
    OutboxRequeue    "outbox_requeue"    POST     "/v1/admin/outbox/requeue";
    OutboxPrune      "outbox_prune"      POST     "/v1/admin/outbox/prune";
    RotateToken      "rotate_token"      POST     "/v1/admin/rotate-token";
    RotateKeypair    "rotate_keypair"    POST     "/v1/admin/rotate-keypair";
    ArchiveCleanup   "archive_cleanup"   POST     "/v1/admin/archive-cleanup";
    Backup           "backup"            POST     "/v1/admin/backup";
    Reload           "reload"            POST     "/v1/admin/reload";
    Shutdown         "shutdown"          POST     "/v1/admin/shutdown";
}

impl Endpoint {
    /// For the user's own commands, which come over the socket.
    pub const fn is_admin(self) -> bool {
        matches!(
            self,
            Self::OutboxList
                | Self::OutboxInspect
                | Self::OutboxRequeue
                | Self::OutboxPrune
                | Self::RotateToken
                | Self::RotateKeypair
                | Self::ArchiveCleanup
                | Self::Backup
                | Self::Reload
                | Self::Shutdown
        )
    }
}

pub fn find(via: Via, method: &Method, path: &str) -> Result<Endpoint> {
    let found = Endpoint::ALL.iter().copied().find(|endpoint| endpoint.path() == path);
    let found = found.ok_or_else(|| Error::new(Code::NotFound, "There is no such endpoint."))?;
    if found.is_admin() && via == Via::Tcp {
        return Err(Error::new(Code::Forbidden, "This endpoint is for callers on the socket."));
    }
    if !found.allows(method) {
        return Err(Error::new(Code::MethodNotAllowed, Code::MethodNotAllowed.entry().title)
            .with_cure("Use the method that docs/mesh.md gives for this path."));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_endpoint_is_found_by_its_path_and_admins_only_on_the_socket() {
        for endpoint in Endpoint::ALL {
            let method = if endpoint.allows(&Method::GET) { Method::GET } else { Method::POST };
            assert_eq!(find(Via::Socket, &method, endpoint.path()).unwrap(), *endpoint);
            assert_eq!(find(Via::Tcp, &method, endpoint.path()).is_err(), endpoint.is_admin());
            assert_eq!(find(Via::Socket, &Method::DELETE, endpoint.path()).unwrap_err().code(), Code::MethodNotAllowed);
            assert_eq!(endpoint.is_admin(), endpoint.path().starts_with("/v1/admin/"));
        }
        for path in ["/", "/v1", "/v1/send/", "/v1//send", "/V1/send", "/v1/sen"] {
            assert_eq!(find(Via::Socket, &Method::POST, path).unwrap_err().code(), Code::NotFound, "{path}");
        }
    }
}
