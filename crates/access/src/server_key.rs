//! The server's own key: what is made under it is of no use to whoever has the database alone.
//!
//! It is 32 random bytes in a file beside the database, never in it. Every purpose has a key of its own, derived from it, so
//! that nothing made for one of them means anything to another. Its id is derived as well: it says which key a thing was
//! made under, tells a damaged file from a good one, and may be shown to anybody.

use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use waybill_kernel::{Code, Entropy, Error, Mode, Result, Time, hex};
use waybill_store::{Ctx, Store, Tx, Value, Work};

const SECRET_BYTES: usize = 32;
/// So many of its own digest name it.
pub(crate) const ID_BYTES: usize = 8;
const PREFIX: &str = "waybill-server-key-1";

/// Prints as its id.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerKey {
    id: String,
    secret: [u8; SECRET_BYTES],
}

impl ServerKey {
    pub fn generate(entropy: &dyn Entropy) -> Self {
        let mut secret = [0; SECRET_BYTES];
        entropy.fill(&mut secret);
        Self::of(secret)
    }

    fn of(secret: [u8; SECRET_BYTES]) -> Self {
        let mut key = Self { id: String::new(), secret };
        key.id = hex::encode(&key.id_bytes());
        key
    }

    pub(crate) fn id_bytes(&self) -> [u8; ID_BYTES] {
        let mut id = [0; ID_BYTES];
        id.copy_from_slice(&derived(&self.secret, "id")[..ID_BYTES]);
        id
    }

    /// Not a secret.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// A key for one purpose and no other.
    pub fn derive(&self, purpose: &str) -> [u8; 32] {
        derived(&self.secret, purpose)
    }

    /// As it stands in its file.
    pub fn reveal(&self) -> String {
        format!("{PREFIX} {} {}\n", self.id, hex::encode(&self.secret))
    }
}

impl FromStr for ServerKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // Nothing of it is repeated.
        let refused = || Error::new(Code::DataFolderUnusable, "That is not a server key, or not a whole one.");
        let mut words = text.split_whitespace();
        let (Some(PREFIX), Some(id), Some(secret), None) = (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(refused());
        };
        let key = Self::of(hex::decode_array(secret).ok_or_else(refused)?);
        if key.id == id { Ok(key) } else { Err(refused()) }
    }
}

impl fmt::Debug for ServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerKey({})", self.id)
    }
}

pub(crate) fn keyed(secret: &[u8; SECRET_BYTES]) -> Hmac<Sha256> {
    // HMAC fills a shorter key up with zeros itself.
    let mut block = [0; 64];
    block[..SECRET_BYTES].copy_from_slice(secret);
    Hmac::new(&block.into())
}

fn derived(secret: &[u8; SECRET_BYTES], purpose: &str) -> [u8; 32] {
    keyed(secret).chain_update(PREFIX).chain_update([0]).chain_update(purpose).finalize().into_bytes().into()
}

/// Whether this server has the key that the database goes with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Agreement {
    Same,
    /// The database goes with the key of this id.
    Other(String),
}

/// The first server to come to a database says which key it goes with.
pub async fn agree_on_server_key(store: &Store, key: &ServerKey) -> Result<Agreement> {
    let noted = match store.system().run(Noted).await? {
        Some(noted) => noted,
        None => store.system().run(Note { id: key.id.clone(), replaces: false }).await?,
    };
    Ok(if noted == key.id { Agreement::Same } else { Agreement::Other(noted) })
}

/// From now on the database goes with this key, and whoever has another one is told.
pub async fn adopt_server_key(store: &Store, key: &ServerKey) -> Result<()> {
    store.system().run(Note { id: key.id.clone(), replaces: true }).await.map(drop)
}

/// What a look at the database asks for.
pub const SERVER_KEY_ID: &str = "SELECT server_key_id FROM server_key WHERE id = 1";

struct Noted;

impl Work for Noted {
    type Output = Option<String>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Option<String>> {
        let row = tx.query_opt(SERVER_KEY_ID, &[]).await?;
        row.map(|row| row.text(0).map(str::to_owned)).transpose()
    }
}

/// Answers with what is noted afterwards: of several nodes that start at once the first one's.
pub(crate) struct Note {
    pub(crate) id: String,
    pub(crate) replaces: bool,
}

impl Work for Note {
    type Output = String;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<String> {
        const INSERT: &str = "INSERT INTO server_key (id, server_key_id, noted_at) VALUES (1, $1, $2) \
                              ON CONFLICT (id) DO NOTHING";
        const REPLACE: &str = "UPDATE server_key SET server_key_id = $1, noted_at = $2 WHERE id = 1";
        let now: Time = ctx.now;
        let values = [Value::from(&self.id), Value::from(now)];
        let is_new = tx.execute(INSERT, &values).await? == 1;
        if self.replaces && !is_new {
            tx.execute(REPLACE, &values).await?;
        }
        let row = tx.query_opt(SERVER_KEY_ID, &[]).await?;
        let row = row.ok_or_else(|| Error::internal("the server key's id was not noted"))?;
        row.text(0).map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use waybill_kernel::entropy::SeededEntropy;

    use super::*;

    #[test]
    fn a_key_reads_back_and_a_damaged_one_does_not() {
        let key = ServerKey::generate(&SeededEntropy::new(1));
        let text = key.reveal();
        assert_eq!(text.parse::<ServerKey>().unwrap(), key);
        assert_eq!(text.trim().parse::<ServerKey>().unwrap().id(), key.id());
        let mut slipped: Vec<String> = Vec::new();
        for (position, char) in text.trim().char_indices().filter(|(_, char)| char.is_ascii_hexdigit()) {
            let other = if char == '0' { '1' } else { '0' };
            slipped.push(text.char_indices().map(|(at, char)| if at == position { other } else { char }).collect());
        }
        slipped.extend(["", "x", &text[..40], &format!("{text}more")].map(str::to_owned));
        for text in slipped {
            let error = text.parse::<ServerKey>().unwrap_err();
            assert_eq!(error.message(), "That is not a server key, or not a whole one.", "{text}");
        }
    }

    #[test]
    fn each_purpose_has_a_key_of_its_own_and_nothing_secret_prints() {
        let entropy = SeededEntropy::new(2);
        let (one, two) = (ServerKey::generate(&entropy), ServerKey::generate(&entropy));
        assert_eq!(one.derive("a"), one.derive("a"));
        assert!(one.derive("a") != one.derive("b") && one.derive("a") != two.derive("a") && one.id() != two.id());
        assert!(one.derive("a") != one.secret);
        let printed = format!("{one:?}");
        assert!(printed.contains(one.id()) && !printed.contains(&hex::encode(&one.secret)[..8]), "{printed}");
    }
}
