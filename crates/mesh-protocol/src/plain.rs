//! What is within the box of a message: the text, and its sender's signature of it and of where it goes.
//!
//! A box says little about who has made it. That of a direct message opens for both sides, so what a member has sent could be
//! handed back to it as the other's words; that of a topic is made by whoever has the key. The signature is of the sender, the mesh,
//! the destination, the id and all that the receiver is shown; anywhere else it is wrong.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use waybill_kernel::{Code, Error, Result, hex};
use zeroize::Zeroizing;

use crate::envelope::Envelope;
use crate::identity::{Context, Identity};
use crate::ids::MeshId;
use crate::json;
use crate::keys::{PublicKey, Signature};
use crate::meta::Meta;
use crate::names::ClientMessageId;

pub const PLAIN_VERSION: u32 = 1;
/// More than there is beside the body when there is no meta.
const FRAME_BYTES: usize = 256;

/// What a message travels in. Of the envelope everything but the body counts: where it goes, with which epoch, in answer to
/// what, how urgent, and who is mentioned.
#[derive(Clone, Copy, Debug)]
pub struct Carrier<'a> {
    pub mesh: MeshId,
    pub id: &'a ClientMessageId,
    pub envelope: &'a Envelope,
}

/// Made by [`Plain::sign`] or read, and then worth nothing before [`Plain::verify`].
///
/// Its fields stand in the order of RFC 8785.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plain {
    pub body: String,
    /// Whose signature it is. A member that has rotated its keys since is named by another one in the delivery.
    from: PublicKey,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<Meta>,
    signature: Signature,
    version: u32,
}

impl Plain {
    /// The envelope is complete but for its body, which is what comes of this.
    pub fn sign(sender: &Identity, carrier: Carrier<'_>, body: String, meta: Option<Meta>) -> Result<Self> {
        // Read back, null is no meta: it must not be signed as one.
        let meta = meta.filter(|meta| !meta.value().is_null());
        let from = sender.public_key();
        let signature = sender.sign(Context::Message, &statement(carrier, &from, &body, meta.as_ref())?);
        Ok(Self { version: PLAIN_VERSION, from, body, meta, signature })
    }

    /// The key that has signed, as the text says.
    pub fn signer(&self) -> &PublicKey {
        &self.from
    }

    /// Whether the key it names has signed this text for this carrier. Whose key that is, is the caller's to know.
    ///
    /// # Errors
    /// `signature_does_not_match`.
    pub fn verify(&self, carrier: Carrier<'_>) -> Result<()> {
        let statement = statement(carrier, &self.from, &self.body, self.meta.as_ref())?;
        if self.from.verifies(Context::Message, &statement, &self.signature) {
            return Ok(());
        }
        Err(Error::new(Code::SignatureDoesNotMatch, "The message is not signed by its sender."))
    }

    /// RFC 8785: one plaintext, one text.
    pub fn to_bytes(&self) -> Result<Zeroizing<Vec<u8>>> {
        if self.meta.is_some() {
            return serde_json_canonicalizer::to_vec(self).map(Zeroizing::new).map_err(Error::internal);
        }
        // Without free JSON in it the fields are in order, and texts and small numbers have one form in both.
        let mut bytes = Zeroizing::new(Vec::with_capacity(self.body.len() + FRAME_BYTES));
        serde_json::to_writer(&mut *bytes, self).map_err(Error::internal)?;
        Ok(bytes)
    }

    /// # Errors
    /// `invalid_request` for anything else: whoever has the key may still have sealed nonsense.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let refused = || Error::invalid("What is in the box is not a message.");
        if json::is_too_deep(bytes) {
            return Err(refused());
        }
        let plain: Self = serde_json::from_slice(bytes).map_err(|error| refused().because(error))?;
        if plain.version == PLAIN_VERSION { Ok(plain) } else { Err(refused()) }
    }
}

/// Each part after its length, so that no two lists of parts read alike. Texts that may be secret are digests.
fn statement(carrier: Carrier<'_>, from: &PublicKey, body: &str, meta: Option<&Meta>) -> Result<Vec<u8>> {
    let Carrier { mesh, id, envelope } = carrier;
    let digest = |text: &str| hex::encode(&Sha256::digest(text.as_bytes()));
    let canonical = meta.map(Meta::canonical).transpose()?.map(Zeroizing::new);
    let mentions: Vec<String> = envelope.mentions.iter().map(PublicKey::to_string).collect();
    let parts = [
        mesh.to_string(),
        from.to_string(),
        envelope.destination_kind.name().to_owned(),
        envelope.destination_ref.clone(),
        envelope.epoch.map(|epoch| epoch.to_string()).unwrap_or_default(),
        id.to_string(),
        envelope.reply_to.as_ref().map(ClientMessageId::to_string).unwrap_or_default(),
        envelope.priority.name().to_owned(),
        mentions.join(","),
        canonical.map(|meta| digest(&meta)).unwrap_or_default(),
        digest(body),
    ];
    let mut statement = Vec::new();
    for part in &parts {
        statement.extend((part.len() as u64).to_be_bytes());
        statement.extend(part.as_bytes());
    }
    Ok(statement)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_way_to_the_bytes_is_the_canonical_one() {
        let from = PublicKey::from_bytes([7; 32]);
        let signature = Signature::from_bytes([9; 64]);
        let texts = ["", "plain", "\"\\/ \u{8}\t\n\u{c}\r\u{b}\u{1f}\u{7f}\u{80}\u{2028}\u{ffff}", "żółć 🚚"];
        for (body, meta) in texts.iter().flat_map(|body| [(body, None), (body, Some(r#"{"b":1,"a":[1e21]}"#))]) {
            let meta = meta.map(|meta| Meta::parse(meta).unwrap());
            let plain = Plain { body: (*body).to_owned(), from, meta, signature, version: PLAIN_VERSION };
            let canonical = serde_json_canonicalizer::to_vec(&plain).unwrap();
            assert_eq!(*plain.to_bytes().unwrap(), canonical, "{body:?}");
            assert_eq!(Plain::from_bytes(&canonical).unwrap(), plain);
        }
    }
}
