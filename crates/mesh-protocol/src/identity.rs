//! Who a member is: a signing pair and a box pair. What the pairs sign begins with its purpose, so that no signature made for
//! one purpose is good for another.

use std::fmt;
use std::sync::OnceLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Code, Entropy, Error, Result, hex};
use zeroize::{Zeroize, Zeroizing};

use crate::bytes::read_hex;
use crate::crypto;
use crate::keys::{BoxPublicKey, KeyId, PublicKey, Signature};

/// What a signature is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// A member's box key is its own.
    BoxKey,
    Challenge,
    Http,
    Invite,
    Join,
    Rotation,
    EpochBox,
    /// The text within a box, with all that it travels in.
    Message,
}

impl Context {
    pub const fn name(self) -> &'static str {
        match self {
            Self::BoxKey => "waybill-box-key-v1",
            Self::Challenge => "waybill-challenge-v1",
            Self::Http => "waybill-http-v1",
            Self::Invite => "waybill-invite-v1",
            Self::Join => "waybill-join-v1",
            Self::Rotation => "waybill-rotation-v1",
            Self::EpochBox => "waybill-epoch-box-v1",
            Self::Message => "waybill-message-v1",
        }
    }

    /// What is signed: the name, a NUL that no name holds, the bytes.
    pub(crate) fn statement(self, bytes: &[u8]) -> Vec<u8> {
        [self.name().as_bytes(), &[0], bytes].concat()
    }
}

/// The secret half of a box pair. Wiped when it is dropped.
#[derive(Clone)]
pub struct BoxSecret {
    secret: Zeroizing<[u8; 32]>,
    /// Made when it is first asked for: it costs about as much as a signature.
    public: OnceLock<BoxPublicKey>,
}

impl BoxSecret {
    pub fn generate(entropy: &dyn Entropy) -> Self {
        let mut secret = Zeroizing::new([0; 32]);
        entropy.fill(secret.as_mut());
        Self { secret, public: OnceLock::new() }
    }

    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self { secret: Zeroizing::new(bytes), public: OnceLock::new() }
    }

    /// None when the text is not 64 lower-case hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        read_hex(text).map(Self::from_bytes)
    }

    /// For the file that keeps it.
    pub fn to_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(hex::encode(self.secret.as_ref()))
    }

    pub fn public(&self) -> BoxPublicKey {
        *self.public.get_or_init(|| BoxPublicKey::from_bytes(crypto::box_public(&self.secret)))
    }

    pub(crate) fn as_bytes(&self) -> &[u8; 32] {
        &self.secret
    }
}

impl fmt::Debug for BoxSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BoxSecret(of {})", self.public().key_id())
    }
}

/// Both secret pairs of a member. Wiped when it is dropped.
#[derive(Clone)]
pub struct Identity {
    public: PublicKey,
    /// Seed and public key, as libsodium keeps it.
    signing: Zeroizing<[u8; 64]>,
    boxes: BoxSecret,
}

/// The text of `keypair.json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    ed25519_pubkey: PublicKey,
    ed25519_privkey: Zeroizing<String>,
    x25519_pubkey: BoxPublicKey,
    x25519_privkey: Zeroizing<String>,
}

const FILE_VERSION: u32 = 1;
/// More than any `keypair.json` has.
const FILE_BYTES_MAX: usize = 4096;

impl Identity {
    pub fn generate(entropy: &dyn Entropy) -> Self {
        let mut seed = Zeroizing::new([0; 32]);
        entropy.fill(seed.as_mut());
        Self::from_secrets(&seed, BoxSecret::generate(entropy))
    }

    pub fn from_secrets(seed: &[u8; 32], boxes: BoxSecret) -> Self {
        let (public, signing) = crypto::signing_key(seed);
        Self { public: PublicKey::from_bytes(public), signing, boxes }
    }

    /// # Errors
    /// `invalid_request` when this is not such a file, or when a public key in it is not that of its secret. What it holds is
    /// not repeated.
    pub fn from_json(text: &str) -> Result<Self> {
        let refused = |wrong: &str| Error::invalid(format!("The file of keys {wrong}."));
        if text.len() > FILE_BYTES_MAX {
            return Err(refused("is too large"));
        }
        // serde_json's complaint may quote what it has read.
        let file: File = serde_json::from_str(text).map_err(|_| refused("cannot be read"))?;
        if file.version != FILE_VERSION {
            return Err(refused("is of another version"));
        }
        let seed = read_hex(&file.ed25519_privkey).map(Zeroizing::new);
        let boxes = BoxSecret::from_hex(&file.x25519_privkey);
        let (Some(seed), Some(boxes)) = (seed, boxes) else { return Err(refused("holds a key that is none")) };
        let identity = Self::from_secrets(&seed, boxes);
        if identity.public != file.ed25519_pubkey || identity.boxes.public() != file.x25519_pubkey {
            return Err(refused("holds a public key that is not that of its secret key"));
        }
        Ok(identity)
    }

    pub fn to_json(&self) -> Result<Zeroizing<String>> {
        let file = File {
            version: FILE_VERSION,
            ed25519_pubkey: self.public,
            ed25519_privkey: Zeroizing::new(hex::encode(&self.signing[..32])),
            x25519_pubkey: self.boxes.public(),
            x25519_privkey: self.boxes.to_hex(),
        };
        serde_json::to_string_pretty(&file).map(Zeroizing::new).map_err(Error::internal)
    }

    pub fn public_key(&self) -> PublicKey {
        self.public
    }

    pub fn box_secret(&self) -> &BoxSecret {
        &self.boxes
    }

    /// What others are told: both public keys, the one signed by the other.
    pub fn public(&self) -> MemberKeys {
        let x25519 = self.boxes.public();
        MemberKeys { ed25519: self.public, x25519, x25519_signature: self.sign(Context::BoxKey, x25519.as_bytes()) }
    }

    /// # Panics
    /// Never: a secret key of the right length signs everything.
    pub fn sign(&self, context: Context, bytes: &[u8]) -> Signature {
        let mut statement = context.statement(bytes);
        let signature = crypto::sign(&self.signing, &statement);
        statement.zeroize();
        match signature {
            Some(signature) => Signature::from_bytes(signature),
            None => unreachable!("Ed25519 signs every text with every key"),
        }
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.public)
    }
}

/// The public keys of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemberKeys {
    pub ed25519: PublicKey,
    pub x25519: BoxPublicKey,
    /// Of the X25519 key by the Ed25519 key: whoever passes the keys on cannot put a box key of its own in between.
    pub x25519_signature: Signature,
}

impl MemberKeys {
    /// # Errors
    /// `signature_does_not_match` when the box key is not signed by the other one.
    pub fn verify(&self) -> Result<()> {
        if self.ed25519.verifies(Context::BoxKey, self.x25519.as_bytes(), &self.x25519_signature) {
            return Ok(());
        }
        Err(Error::new(Code::SignatureDoesNotMatch, "The member's box key is not signed by its own key.")
            .with_cure("Make the keys again with `waybill mesh join` or `waybill daemon remint`."))
    }

    pub fn key_id(&self) -> KeyId {
        self.x25519.key_id()
    }
}

#[cfg(test)]
mod tests {
    use waybill_kernel::entropy::SeededEntropy;

    use super::*;

    #[test]
    fn an_identity_comes_back_from_its_file() {
        let identity = Identity::generate(&SeededEntropy::new(1));
        let text = identity.to_json().unwrap();
        let back = Identity::from_json(&text).unwrap();
        assert_eq!(back.public(), identity.public());
        assert_eq!(*back.to_json().unwrap(), *text);
        back.public().verify().unwrap();
        assert_ne!(Identity::generate(&SeededEntropy::new(2)).public(), identity.public());
    }

    #[test]
    fn a_file_whose_halves_do_not_fit_is_refused_without_being_repeated() {
        let (one, other) = (Identity::generate(&SeededEntropy::new(1)), Identity::generate(&SeededEntropy::new(2)));
        let text = one.to_json().unwrap();
        let secret = hex::encode(&one.signing[..32]);
        for (from, to) in [
            (one.public.to_string(), other.public.to_string()),
            (one.boxes.public().to_string(), other.boxes.public().to_string()),
            (secret.clone(), secret.to_uppercase()),
            (secret.clone(), secret[1..].to_owned()),
            ("\"version\": 1".to_owned(), "\"version\": 2".to_owned()),
            ("\"version\": 1".to_owned(), "\"version\": 1, \"more\": 1".to_owned()),
        ] {
            let changed = text.replace(&from, &to);
            assert_ne!(changed, *text, "{from}");
            let error = Identity::from_json(&changed).unwrap_err();
            assert!(!format!("{error} {:?}", error.cause()).contains(&secret[..8]), "{error}");
        }
        assert!(Identity::from_json(&" ".repeat(FILE_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn a_signature_is_good_for_its_purpose_and_its_bytes_alone() {
        let identity = Identity::generate(&SeededEntropy::new(1));
        let key = identity.public_key();
        let signature = identity.sign(Context::Challenge, b"bytes");
        assert!(key.verifies(Context::Challenge, b"bytes", &signature));
        assert!(!key.verifies(Context::Http, b"bytes", &signature));
        assert!(!key.verifies(Context::Challenge, b"Bytes", &signature));
        let other = Identity::generate(&SeededEntropy::new(2));
        assert!(!other.public_key().verifies(Context::Challenge, b"bytes", &signature));
        let keys = MemberKeys { x25519: other.boxes.public(), ..identity.public() };
        assert_eq!(keys.verify().unwrap_err().code(), Code::SignatureDoesNotMatch);
    }

    #[test]
    fn secrets_are_not_shown() {
        let identity = Identity::generate(&SeededEntropy::new(1));
        let shown = format!("{identity:?} {:?}", identity.box_secret());
        assert!(!shown.contains(&*identity.boxes.to_hex()), "{shown}");
        assert!(!shown.contains(&hex::encode(&identity.signing[..32])), "{shown}");
    }
}
