//! The attacks. Each goes on for as long as the scale says, and then says what it has found itself.

mod bodies;
mod connections;
mod keys;
mod mail;
mod manners;
pub mod mesh;
mod nesting;
mod sqs;
mod unread;
mod waits;
mod windows;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::time::sleep;

use crate::caller::Target;
use crate::marks::Check;
use crate::scale::Scale;
use crate::series::Series;
use crate::stage::Cast;
use crate::tally::Tally;
use crate::wire;

/// What the attackers know and have.
pub struct Field {
    pub to: SocketAddr,
    /// Where SQS clients are served.
    pub sqs: SocketAddr,
    pub scale: Scale,
    pub cast: Cast,
    pub tally: Arc<Tally>,
}

impl Field {
    /// An attacker's key; there is always one.
    fn key(&self, number: usize) -> &str {
        let attackers = &self.cast.attackers;
        &attackers[number % attackers.len()].minted.key
    }

    fn target(&self, key: &str) -> Target {
        Target { from: wire::attacker(0), to: self.to, key: key.to_owned() }
    }

    fn time(&self) -> Time {
        Time { began: Instant::now(), hold: self.scale.hold }
    }
}

/// For attacks that only hold what they have opened.
async fn held(field: &Field) -> Result<Vec<Check>> {
    sleep(field.scale.hold).await;
    Ok(Vec::new())
}

/// Those whom the attack is not meant for were served all the while: none of their calls failed or took too long.
fn spared(field: &Field, what: &str, calls: &Series) -> Check {
    let (longest, max) = (calls.max().unwrap_or_default(), field.scale.answer_max);
    let what = format!(
        "{what}, within {} s ({} calls, {} failed: {:?}, the longest took {:.2} s)",
        max.as_secs(),
        calls.count(),
        calls.failed(),
        calls.errors,
        longest.as_secs_f64()
    );
    Check::new(calls.count() > 0 && calls.failed() == 0 && longest <= max, what)
}

/// How long an attack goes on.
struct Time {
    began: Instant,
    hold: Duration,
}

impl Time {
    fn is_left(&self) -> bool {
        self.began.elapsed() < self.hold
    }
}

macro_rules! attacks {
    ($($variant:ident = $name:literal, $what:literal, $run:path;)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Attack { $($variant),+ }

        impl Attack {
            pub const ALL: &'static [Attack] = &[$(Attack::$variant),+];

            pub fn name(self) -> &'static str {
                match self { $(Attack::$variant => $name),+ }
            }

            pub fn what(self) -> &'static str {
                match self { $(Attack::$variant => $what),+ }
            }

            pub async fn run(self, field: &Field) -> Result<Vec<Check>> {
                match self { $(Attack::$variant => Box::pin($run(field)).await),+ }
            }
        }
    };
}

attacks! {
    Nesting = "nesting", "JSON nested deep, openly and as text within text, at every place of a request", nesting::run;
    Windows = "windows", "HTTP/2 without a key: documents asked for and never taken", windows::without_key;
    WindowsKey = "windows-key", "HTTP/2 with an agent's key: large answers asked for and never taken", windows::with_key;
    Bodies = "bodies", "bodies of [0,0,…] as large as allowed, all but their last byte, then that", bodies::run;
    Unread = "unread", "HTTP/1 with and without a key: large answers asked for and never read", unread::run;
    Idle = "idle", "connections that ask once and then say nothing, from one address", connections::idle_from_one;
    IdleMany = "idle-many", "the same from several addresses", connections::idle_from_many;
    Silent = "silent", "connections that say nothing, half a line, or a body byte by byte", connections::silent;
    Waits = "waits", "one key waits in every place there is, and is then revoked", waits::of_one_key;
    WaitsTenant = "waits-tenant", "the same by several keys of one tenant", waits::of_a_tenant;
    WaitsLarge = "waits-large", "one key waits for large tasks, whose answers come all at once", waits::for_large_tasks;
    SqsPolls = "sqs-polls", "one SQS key's long polls in every place there is, and its end", sqs::polls;
    SqsFlood = "sqs-flood", "SQS requests without a signature, and signed by keys that nobody has made", sqs::flood;
    SqsUnread = "sqs-unread", "one SQS key's receives of ten large messages, of which nothing is read", sqs::unread;
    SqsBodies = "sqs-bodies", "SQS requests by a good key whose large bodies never end", sqs::bodies;
    MailCursors = "mail-cursors", "one key follows an inbox in every place there is, and is then revoked", mail::cursors;
    MailSearches = "mail-searches", "one key's searches for thousands of words and prefixes", mail::searches;
    MailPatterns = "mail-patterns", "one key's reservations of patterns that are dear to compare", mail::patterns;
    MailLarge = "mail-large", "one key's largest messages to as many as it may write to", mail::large;
    MeshChallenges = "mesh-challenges", "mesh sockets that never answer their challenge", mesh::challenges;
    MeshUnread = "mesh-unread", "members of a mesh that never read what is posted to them", mesh::unread;
    MeshFloods = "mesh-floods", "members of a mesh that send frames without end, good and bad", mesh::floods;
    MeshFanout = "mesh-fanout", "one member's posts to a topic that everybody has subscribed to", mesh::fanout;
    Streams = "streams", "one key opens every stream of events there is, and is then revoked", waits::of_events;
    Keys = "keys", "a flood of well-formed keys that nobody has made", keys::run;
    Manners = "manners", "a go-ahead asked for 100 MB; two Host headers", manners::run;
}
