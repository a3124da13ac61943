//! A backup of who the daemon is: its keys and those it has archived, its membership and settings, its subscriptions and the keys
//! of its topics, in one file that a passphrase opens.
//!
//! Messages are not in it: the outbox belongs to this host and its ids must not live twice, and the inbox can be filled from the
//! broker. The local token is not either: it is for the programs of this host. The host's fingerprint stays out so that the first
//! start after a restore takes the one of its own host.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use waybill_kernel::{Code, Entropy, Error, Result, Time};
use waybill_mesh_protocol::{TopicKey, passphrase};
use zeroize::Zeroizing;

use crate::directory::{Change, Directory, Topic};
use crate::folder::{self, Folder};
use crate::identity::{Membership, load_identity};
use crate::rotation::KEYPAIR_NEXT;

const VERSION: u32 = 1;
/// A phrase that is shorter can be guessed, whatever each guess costs.
const PASSPHRASE_CHARS_MIN: usize = 8;
/// In the order in which they are written back. The membership is last: without it the folder is none that a daemon starts in, so a
/// restore that was cut short is begun again and not taken for a whole one.
const FILES: &[&str] =
    &[folder::KEYPAIR, folder::KEYPAIR_ARCHIVE, folder::CONFIG, folder::HOOKS_CONFIG, folder::MEMBERSHIP];

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    slug: String,
    made_at: Time,
    files: BTreeMap<String, Zeroizing<String>>,
    topics: Vec<TopicCopy>,
    keys: Vec<KeyCopy>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TopicCopy {
    name: String,
    subscribed: bool,
    epoch: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyCopy {
    topic: String,
    epoch: u32,
    key: Zeroizing<String>,
}

/// What a backup holds, for whoever made or restored it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    pub slug: String,
    pub made_at: Time,
    pub files: Vec<String>,
    pub topics: usize,
    pub topic_keys: usize,
}

/// Blocking, and slow on purpose: a passphrase is made into a key.
pub fn seal(
    folder: &Folder,
    directory: &Directory,
    phrase: &str,
    now: Time,
    entropy: &dyn Entropy,
) -> Result<(Vec<u8>, Summary)> {
    check_passphrase(phrase)?;
    let membership = Membership::load(folder)?.ok_or_else(|| no_membership(folder))?;
    if load_identity(folder)?.is_none() {
        let message = format!("{} holds no keys: the member is an ephemeral one.", folder.path().display());
        return Err(Error::new(Code::InvalidRequest, message).with_cure("Only members that are kept can be backed up."));
    }
    refuse_doubt(folder)?;
    let mut files = BTreeMap::new();
    for name in FILES {
        if let Some(text) = folder.read_text(name)? {
            files.insert((*name).to_owned(), Zeroizing::new(text));
        }
    }
    // A daemon that runs may have begun to rotate meanwhile.
    refuse_doubt(folder)?;
    let topics = directory.topics().into_iter();
    let keys = directory.epoch_keys().into_iter();
    let contents = Contents {
        version: VERSION,
        slug: membership.slug,
        made_at: now,
        files,
        topics: topics.map(|Topic { name, subscribed, epoch }| TopicCopy { name, subscribed, epoch }).collect(),
        keys: keys.map(|(topic, epoch, key)| KeyCopy { topic, epoch, key: key.to_hex() }).collect(),
    };
    let plain = Zeroizing::new(serde_json::to_vec(&contents).map_err(Error::internal)?);
    Ok((passphrase::seal(phrase.as_bytes(), &plain, entropy)?, contents.summary()))
}

/// A backup that was opened.
pub struct Opened(Contents);

/// Blocking, and slow on purpose.
pub fn open(sealed: &[u8], phrase: &str) -> Result<Opened> {
    let plain = passphrase::open(phrase.as_bytes(), sealed).map_err(|error| {
        Error::new(Code::InvalidRequest, "The backup cannot be opened with this passphrase.")
            .because(error)
            .with_cure("Check the passphrase; if it is right, the file is not as it was written.")
    })?;
    let unknown = |why: &str| Error::new(Code::InvalidRequest, format!("The backup cannot be read: {why}."));
    let contents: Contents = serde_json::from_slice(&plain)
        .map_err(|error| unknown("another version of the program has written it").because(error))?;
    if contents.version != VERSION {
        return Err(unknown(&format!("it has version {}, and this program knows {VERSION}", contents.version)));
    }
    folder::check_slug(&contents.slug)?;
    // A name from a file becomes a path only if it is one of ours.
    if contents.files.keys().any(|name| !FILES.contains(&name.as_str())) {
        return Err(unknown("it holds a file that no backup has"));
    }
    Ok(Opened(contents))
}

impl Opened {
    pub fn slug(&self) -> &str {
        &self.0.slug
    }

    pub fn summary(&self) -> Summary {
        self.0.summary()
    }

    /// Into a folder without a member. The caller holds the folder's lock.
    pub fn write_files(&self, folder: &Folder) -> Result<Membership> {
        if Membership::load(folder)?.is_some() {
            let message = format!("{} has a member already.", folder.path().display());
            let cure = "Back it up and remove it with `waybill daemon reset`, or restore under another WAYBILL_HOME.";
            return Err(Error::new(Code::AlreadyExists, message).with_cure(cure));
        }
        for name in FILES {
            if let Some(text) = self.0.files.get(*name) {
                folder.write(name, text.as_bytes())?;
            }
        }
        folder.remove(folder::HOST_FINGERPRINT)?;
        Membership::load(folder)?.ok_or_else(|| Error::invalid("The backup holds no membership."))
    }

    /// Subscriptions and topic keys.
    pub async fn teach(&self, directory: &Directory) -> Result<()> {
        let topics = self.0.topics.iter().map(|topic| {
            Ok(Change::Topic(Topic { name: topic.name.clone(), subscribed: topic.subscribed, epoch: topic.epoch }))
        });
        let keys = self.0.keys.iter().map(|copy| {
            let key =
                TopicKey::from_hex(&copy.key).ok_or_else(|| Error::invalid("The backup holds a key that is none."))?;
            Ok(Change::EpochKey { topic: copy.topic.clone(), epoch: copy.epoch, key })
        });
        directory.learn(topics.chain(keys).collect::<Result<Vec<_>>>()?).await
    }
}

impl Contents {
    fn summary(&self) -> Summary {
        Summary {
            slug: self.slug.clone(),
            made_at: self.made_at,
            files: self.files.keys().cloned().collect(),
            topics: self.topics.len(),
            topic_keys: self.keys.len(),
        }
    }
}

pub fn check_passphrase(phrase: &str) -> Result<()> {
    if phrase.chars().count() >= PASSPHRASE_CHARS_MIN {
        return Ok(());
    }
    Err(Error::invalid(format!("A passphrase has at least {PASSPHRASE_CHARS_MIN} characters.")))
}

/// Between the first step of a rotation and its last only the broker knows which keys are the member's: those that a backup would
/// hold may be nobody's any more.
fn refuse_doubt(folder: &Folder) -> Result<()> {
    if folder.read(KEYPAIR_NEXT)?.is_none() {
        return Ok(());
    }
    let message = format!("A rotation of the keys in {} has not come to its end.", folder.path().display());
    Err(Error::new(Code::InvalidRequest, message)
        .with_cure("Let the daemon connect to the server once, which settles it, then back up again."))
}

fn no_membership(folder: &Folder) -> Error {
    let message = format!("{} holds no membership.", folder.path().display());
    Error::new(Code::NotFound, message)
        .with_cure("Join a mesh with `waybill mesh join`, or check WAYBILL_HOME and --mesh.")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use waybill_kernel::Clock;
    use waybill_kernel::entropy::{OsEntropy, SeededEntropy};
    use waybill_mesh_protocol::{Identity, MemberId, MeshId};

    use super::*;
    use crate::identity::save_identity;
    use crate::inbox;

    async fn directory(folder: &Folder, owner: &Identity) -> Directory {
        let entropy: Arc<dyn Entropy> = Arc::new(OsEntropy);
        let clock = Arc::new(Clock::system());
        let (store, _) = inbox::open_store(&folder.file(folder::INBOX), &clock, &entropy).await.unwrap();
        Directory::open(store, owner.public_key(), false).await.unwrap()
    }

    fn member(folder: &Folder, identity: &Identity) -> Membership {
        let membership = Membership {
            server: "http://127.0.0.1:1".to_owned(),
            mesh: serde_json::from_str::<MeshId>("\"01890000-0000-7000-8000-000000000001\"").unwrap(),
            slug: "acme".to_owned(),
            member: serde_json::from_str::<MemberId>("\"01890000-0000-7000-8000-000000000002\"").unwrap(),
            name: "alice".to_owned(),
            owner: identity.public(),
            plaintext: false,
        };
        save_identity(folder, identity).unwrap();
        membership.save(folder).unwrap();
        membership
    }

    #[tokio::test]
    async fn what_a_member_is_comes_back_and_what_belongs_to_the_host_does_not() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = Folder::open(from.path(), "acme").unwrap();
        let identity = Identity::generate(&SeededEntropy::new(5));
        let membership = member(&folder, &identity);
        folder.write(folder::CONFIG, b"[clone]\npolicy = \"warn\"\n").unwrap();
        folder.write(folder::LOCAL_TOKEN, b"wbl_secret").unwrap();
        folder.write(folder::HOST_FINGERPRINT, b"{}").unwrap();
        let known = directory(&folder, &identity).await;
        let key = TopicKey::generate(&SeededEntropy::new(6));
        let topic = Topic { name: "builds".to_owned(), subscribed: true, epoch: Some(3) };
        let learnt = Change::EpochKey { topic: "builds".to_owned(), epoch: 3, key: key.clone() };
        known.learn(vec![Change::Topic(topic.clone()), learnt]).await.unwrap();

        let now = Time::from_micros(7);
        assert_eq!(seal(&folder, &known, "short", now, &OsEntropy).unwrap_err().code(), Code::InvalidRequest);
        let (sealed, summary) = seal(&folder, &known, "correct horse", now, &OsEntropy).unwrap();
        assert_eq!((summary.topics, summary.topic_keys, summary.slug.as_str()), (1, 1, "acme"));
        assert!(!sealed.windows(5).any(|bytes| bytes == b"alice"), "it is sealed");
        assert_eq!(open(&sealed, "wrong horse").err().unwrap().code(), Code::InvalidRequest);
        let mut bent = sealed.clone();
        *bent.last_mut().unwrap() ^= 1;
        assert!(open(&bent, "correct horse").is_err());

        let opened = open(&sealed, "correct horse").unwrap();
        assert_eq!(opened.summary(), summary);
        let there = Folder::open(to.path(), opened.slug()).unwrap();
        assert_eq!(opened.write_files(&there).unwrap(), membership);
        let found = directory(&there, &identity).await;
        opened.teach(&found).await.unwrap();
        assert_eq!(found.topics(), [topic]);
        assert_eq!(found.epoch_key("builds", 3).unwrap().as_bytes(), key.as_bytes());
        assert_eq!(load_identity(&there).unwrap().unwrap().public(), identity.public());
        assert!(there.read_text(folder::CONFIG).unwrap().unwrap().contains("warn"));
        for absent in [folder::LOCAL_TOKEN, folder::HOST_FINGERPRINT] {
            assert_eq!(there.read(absent).unwrap(), None, "{absent}");
        }
        assert_eq!(opened.write_files(&there).unwrap_err().code(), Code::AlreadyExists);
    }

    #[tokio::test]
    async fn keys_in_doubt_are_not_backed_up() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::open(home.path(), "acme").unwrap();
        let identity = Identity::generate(&SeededEntropy::new(5));
        member(&folder, &identity);
        let known = directory(&folder, &identity).await;
        let next = Identity::generate(&SeededEntropy::new(6)).to_json().unwrap();
        folder.write(KEYPAIR_NEXT, next.as_bytes()).unwrap();
        let error = seal(&folder, &known, "correct horse", Time::EPOCH, &OsEntropy).unwrap_err();
        assert_eq!(error.code(), Code::InvalidRequest);
        assert!(error.cure().contains("connect to the server once"), "{}", error.cure());
        folder.remove(KEYPAIR_NEXT).unwrap();
        seal(&folder, &known, "correct horse", Time::EPOCH, &OsEntropy).unwrap();
    }

    #[tokio::test]
    async fn a_folder_without_a_member_has_nothing_to_back_up() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::open(home.path(), "acme").unwrap();
        let identity = Identity::generate(&SeededEntropy::new(5));
        let known = directory(&folder, &identity).await;
        let error = seal(&folder, &known, "correct horse", Time::EPOCH, &OsEntropy).unwrap_err();
        assert_eq!(error.code(), Code::NotFound);
        assert!(error.cure().contains("mesh join"), "{}", error.cure());
    }
}
