//! An invite: the owner's signed word that whoever brings it may join, and the owner's key for the joiner to pin. It is one
//! line of text, `wbi_<base64url(json)>.<signature>`; the signature is over the JSON as it stands there.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waybill_kernel::{Code, Error, Result, Time};

use crate::identity::{Context, Identity, MemberKeys};
use crate::ids::{InviteId, MeshId};
use crate::json;
use crate::keys::{PublicKey, Signature};
use crate::names::Slug;

pub const PREFIX: &str = "wbi_";
/// More than any invite has with an address of the largest size.
pub const INVITE_CHARS_MAX: usize = 4096;
const SERVER_CHARS_MAX: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Invite {
    /// Where the broker is: `http://` or `https://`, host, port.
    pub server: String,
    pub mesh: MeshId,
    pub slug: Slug,
    pub invite_id: InviteId,
    pub owner: MemberKeys,
    /// Who has signed it: the owner.
    pub issuer: PublicKey,
    pub uses: u32,
    pub expires_at: Time,
    pub plaintext: bool,
}

impl Invite {
    /// The text that is handed to the joiner.
    ///
    /// # Errors
    /// `invite_invalid` for one that its reader would refuse.
    pub fn sign(&self, issuer: &Identity) -> Result<String> {
        self.check()?;
        if issuer.public_key() != self.issuer {
            return Err(refused("is signed by another than its issuer"));
        }
        let json = serde_json::to_string(self).map_err(Error::internal)?;
        let signature = issuer.sign(Context::Invite, json.as_bytes());
        Ok(format!("{PREFIX}{}.{signature}", URL_SAFE_NO_PAD.encode(json)))
    }

    /// # Errors
    /// `invite_invalid` for what the issuer has not signed in this form; `invite_expired`. Uses are the broker's to count.
    pub fn parse_and_verify(text: &str, now: Time) -> Result<Self> {
        let invite = Self::parse(text)?;
        if now >= invite.expires_at {
            return Err(Error::new(Code::InviteExpired, format!("The invite expired at {}.", invite.expires_at)));
        }
        Ok(invite)
    }

    /// The same without a look at the clock, for whoever only shows it.
    pub fn parse(text: &str) -> Result<Self> {
        if text.len() > INVITE_CHARS_MAX {
            return Err(refused("is too long"));
        }
        let unread = || refused("cannot be read");
        let (json, signature) = text.strip_prefix(PREFIX).and_then(|rest| rest.split_once('.')).ok_or_else(unread)?;
        let json = URL_SAFE_NO_PAD.decode(json).map_err(|_| unread())?;
        let signature: Signature = signature.parse().map_err(|_| unread())?;
        if json::is_too_deep(&json) {
            return Err(unread());
        }
        let invite: Self = serde_json::from_slice(&json).map_err(|error| unread().because(error))?;
        if !invite.issuer.verifies(Context::Invite, &json, &signature) {
            return Err(refused("is not signed by its issuer"));
        }
        invite.check()?;
        Ok(invite)
    }

    /// What a signature does not say.
    fn check(&self) -> Result<()> {
        self.owner.verify().map_err(|_| refused("names an owner whose box key is not its own"))?;
        // Anybody can sign an invite that names another owner; only the owner's is worth pinning a key.
        if self.issuer != self.owner.ed25519 {
            return Err(refused("is not from the owner of the mesh"));
        }
        if self.uses == 0 {
            return Err(refused("is good for no use"));
        }
        let address = self.server.strip_prefix("https://").or_else(|| self.server.strip_prefix("http://"));
        let is_address = address.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'));
        let is_plain = self.server.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_address || !is_plain || self.server.len() > SERVER_CHARS_MAX {
            return Err(refused("names no address of a server"));
        }
        Ok(())
    }
}

fn refused(wrong: &str) -> Error {
    Error::new(Code::InviteInvalid, format!("The invite {wrong}."))
}
