//! What a program must be able to do to serve what is stored.
//!
//! A program that does not know partitions would look for a group's messages where they are not: it would hand them out in
//! the wrong order or not at all. So whoever stores something that earlier programs cannot serve writes down what it
//! takes, in the same transaction, and a program that lacks it does not begin.

use waybill_kernel::{Code, Error, Mode, Result};
use waybill_store::{Ctx, Store, Tx, Value, Work};

/// FIFO queues that have partitions.
pub const HTFIFO: &str = "htfifo";

/// What this program can do, in alphabetical order. A store that was opened with other ones is a test's.
#[derive(Clone, Copy, Debug)]
pub struct Capabilities(pub &'static [&'static str]);

impl Capabilities {
    /// A name stands here only when everything is there that it promises: routing, receiving from all partitions, and the
    /// refusal of [`check_capabilities`].
    pub const OWN: Self = Self(&[HTFIFO]);

    pub fn of(settings: &waybill_store::Settings) -> Self {
        settings.find().copied().unwrap_or(Self::OWN)
    }
}

/// Refuses what this program cannot serve, and otherwise notes for others what they must be able to do.
pub(crate) async fn require(ctx: &Ctx<'_>, tx: &mut Tx<'_>, capability: &'static str) -> Result<()> {
    const NOTE: &str = "INSERT INTO required_capabilities (tenant, name) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    let own = ctx.settings_if_given::<Capabilities>().unwrap_or(&Capabilities::OWN);
    if !own.0.contains(&capability) {
        let message = "PartitionCount must be 1: this server does not offer more at present.";
        return Err(Error::new(Code::InvalidAttributeValue, message).because(format!("it lacks {capability}")));
    }
    tx.execute(NOTE, &[Value::from(capability)]).await.map(drop)
}

/// Refuses a database that needs more than this program can do. Asked before anything of it is served, and now and then
/// after that: another server may have stored something new.
pub async fn check_capabilities(store: &Store) -> Result<()> {
    let own = Capabilities::of(store.settings());
    let missing: Vec<String> =
        store.system().run(Required).await?.into_iter().filter(|name| !own.0.contains(&name.as_str())).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!("The database has queues that need what this program cannot do: {}.", missing.join(", "));
    Err(Error::new(Code::SchemaTooNew, message).with_cure("Start the version that made them or a newer one."))
}

/// What the database needs.
struct Required;

impl Work for Required {
    type Output = Vec<String>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Vec<String>> {
        const REQUIRED: &str = "SELECT DISTINCT name FROM required_capabilities ORDER BY name";
        tx.query(REQUIRED, &[]).await?.iter().map(|row| row.text(0).map(str::to_owned)).collect()
    }
}
