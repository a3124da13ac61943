//! Is this the host on which the folder was made? It finds accidental copies: an image with a daemon in it, a home folder that
//! was restored elsewhere. It keeps nobody out who copies a folder on purpose and knows of it.
//!
//! Neither the boot id nor the host's name counts: both change on a host that stays the same.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use waybill_kernel::{Code, Entropy, Error, Result, hex};

use crate::config::ClonePolicy;
use crate::folder::{self, Folder};
use crate::metrics;

const EXCLUDED: &[&str] = &["docker", "br-", "veth", "tun", "tap", "wg", "tailscale", "ppp", "vboxnet", "vmnet"];
/// Interfaces that are looked at.
const INTERFACES_MAX: usize = 1_024;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// /etc/machine-id, else that of D-Bus.
    pub machine_id: Option<String>,
    /// Name and address of each network interface.
    pub interfaces: Vec<(String, String)>,
}

impl Host {
    /// `root` is `/`, except in tests.
    pub fn read(root: &Path) -> Self {
        let text = |path: &str| {
            let text = fs::read_to_string(root.join(path)).ok()?.trim().to_owned();
            (!text.is_empty()).then_some(text)
        };
        let machine_id = text("etc/machine-id").or_else(|| text("var/lib/dbus/machine-id"));
        let entries = fs::read_dir(root.join("sys/class/net")).into_iter().flatten().flatten().take(INTERFACES_MAX);
        let named = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let interfaces = named.filter_map(|name| Some((text(&format!("sys/class/net/{name}/address"))?, name)));
        Self { machine_id, interfaces: interfaces.map(|(address, name)| (name, address)).collect() }
    }

    /// None when there is nothing to tell this host from another by.
    pub fn fingerprint(&self) -> Option<String> {
        let mac = self.stable_mac();
        let id = self.machine_id.as_deref().or(mac)?;
        let digest = Sha256::new().chain_update(id).chain_update(mac.unwrap_or_default()).finalize();
        Some(hex::encode(&digest))
    }

    /// Of the first physical interface by name, wired ones first.
    fn stable_mac(&self) -> Option<&str> {
        let rank = |name: &str| match name {
            name if EXCLUDED.iter().any(|prefix| name.starts_with(prefix)) || name == "lo" => None,
            name if name.starts_with("en") || name.starts_with("eth") => Some(0),
            name if name.starts_with("wl") => Some(1),
            _ => None,
        };
        let has_address = |address: &str| address.bytes().any(|byte| byte != b'0' && byte != b':');
        let physical = self.interfaces.iter().filter(|(_, address)| has_address(address));
        let ranked = physical.filter_map(|(name, address)| Some((rank(name)?, name, address)));
        ranked.min().map(|(_, _, address)| address.as_str())
    }
}

/// host_fingerprint.json.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    fingerprint: String,
    /// It is random, because nothing could be read, and says nothing about a host.
    #[serde(default)]
    random: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The first start here.
    First,
    Same,
    Other,
    /// Nothing to compare, then or now.
    Unknown,
}

fn compare(stored: Option<&Stored>, present: Option<&str>) -> Finding {
    match (stored, present) {
        (None, Some(_)) => Finding::First,
        (None | Some(_), None) | (Some(Stored { random: true, .. }), _) => Finding::Unknown,
        (Some(stored), Some(present)) if stored.fingerprint == present => Finding::Same,
        (Some(_), Some(_)) => Finding::Other,
    }
}

/// Compares host and folder, and notes the host of a new folder.
///
/// # Errors
/// `host_fingerprint_mismatch` on another host, unless the policy lets it pass.
pub fn check(folder: &Folder, host: &Host, policy: ClonePolicy, entropy: &dyn Entropy) -> Result<Finding> {
    let stored = read(folder)?;
    let present = host.fingerprint();
    let finding = compare(stored.as_ref(), present.as_deref());
    match (finding, &present) {
        (Finding::First, Some(fingerprint)) => write(folder, fingerprint, false)?,
        (Finding::Unknown, _) => {
            tracing::warn!(
                "fingerprint_unavailable: whether the daemon's folder was copied from another host is not checked"
            );
            if stored.is_none() {
                let mut random = [0; 32];
                entropy.fill(&mut random);
                write(folder, &hex::encode(&random), true)?;
            }
        }
        (Finding::Other, _) => {
            metrics::clone_suspected();
            match policy {
                ClonePolicy::Refuse => return Err(refused(folder)),
                ClonePolicy::Warn => {
                    tracing::warn!(folder = %folder.path().display(), "the daemon's folder was made on another host")
                }
                ClonePolicy::Allow => {}
            }
        }
        _ => {}
    }
    Ok(finding)
}

/// The folder belongs to this host from now on: keys stay as they are.
pub fn accept(folder: &Folder, host: &Host) -> Result<()> {
    match host.fingerprint() {
        Some(fingerprint) => write(folder, &fingerprint, false),
        // The next start says that nothing can be read here.
        None => folder.remove(folder::HOST_FINGERPRINT),
    }
}

fn read(folder: &Folder) -> Result<Option<Stored>> {
    let Some(text) = folder.read_text(folder::HOST_FINGERPRINT)? else { return Ok(None) };
    serde_json::from_str(&text).map(Some).map_err(|error| {
        let path = folder.file(folder::HOST_FINGERPRINT);
        Error::new(Code::HostChanged, format!("{} cannot be read: {error}.", path.display()))
    })
}

fn write(folder: &Folder, fingerprint: &str, random: bool) -> Result<()> {
    let stored = Stored { fingerprint: fingerprint.to_owned(), random };
    let text = serde_json::to_string(&stored).map_err(Error::internal)?;
    folder.write(folder::HOST_FINGERPRINT, text.as_bytes())
}

fn refused(folder: &Folder) -> Error {
    let slug = folder.path().file_name().unwrap_or_default().to_string_lossy();
    let message = format!(
        "The folder {} was made on another host. Two daemons with the same keys would take each other's messages.",
        folder.path().display()
    );
    Error::new(Code::HostChanged, message).with_cure(format!(
        "Run `waybill daemon accept-host --mesh {slug}` to keep its keys here, or `waybill daemon remint --mesh {slug} --invite INVITE` \
         with an invite of the mesh's owner for new keys and a new member."
    ))
}

#[cfg(test)]
mod tests {
    use waybill_kernel::entropy::SeededEntropy;

    use super::*;

    fn host(machine_id: Option<&str>, interfaces: &[(&str, &str)]) -> Host {
        let interfaces = interfaces.iter().map(|(name, address)| ((*name).to_owned(), (*address).to_owned())).collect();
        Host { machine_id: machine_id.map(str::to_owned), interfaces }
    }

    #[test]
    fn the_interface_that_counts() {
        for (interfaces, expected) in [
            (&[][..], None),
            (&[("lo", "00:00:00:00:00:01")], None),
            (&[("docker0", "02:a"), ("veth1", "02:b"), ("br-3", "02:c"), ("tun0", "02:d"), ("tap0", "02:e")], None),
            (
                &[("wg0", "02:a"), ("tailscale0", "02:b"), ("ppp0", "02:c"), ("vboxnet0", "02:d"), ("vmnet8", "02:e")],
                None,
            ),
            (&[("wlan0", "02:a"), ("eth1", "02:b"), ("eth0", "02:c")], Some("02:c")),
            (&[("wlp2s0", "02:a"), ("enp3s0", "02:b")], Some("02:b")),
            (&[("wlp2s0", "02:a"), ("docker0", "02:b")], Some("02:a")),
            (&[("eth0", "00:00:00:00:00:00"), ("eth1", "02:b")], Some("02:b")),
        ] {
            assert_eq!(host(None, interfaces).stable_mac(), expected, "{interfaces:?}");
        }
    }

    #[test]
    fn the_fingerprint_is_of_id_and_address() {
        let digest = |text: &str| Some(hex::encode(&Sha256::digest(text)));
        assert_eq!(host(Some("id"), &[("eth0", "02:a")]).fingerprint(), digest("id02:a"));
        assert_eq!(host(Some("id"), &[]).fingerprint(), digest("id"));
        assert_eq!(host(None, &[("eth0", "02:a")]).fingerprint(), digest("02:a02:a"));
        assert_eq!(host(None, &[("lo", "02:a")]).fingerprint(), None);
    }

    #[test]
    fn what_a_host_says_of_itself_is_read_from_its_files() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(Host::read(root.path()), Host::default());
        write("var/lib/dbus/machine-id", "dbus\n");
        write("sys/class/net/eth0/address", "02:a\n");
        assert_eq!(Host::read(root.path()), host(Some("dbus"), &[("eth0", "02:a")]));
        write("etc/machine-id", "etc\n");
        assert_eq!(Host::read(root.path()).machine_id.as_deref(), Some("etc"));
    }

    #[test]
    fn another_host_is_refused_until_it_is_accepted() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::open(home.path(), "acme").unwrap();
        let entropy = SeededEntropy::new(1);
        let (here, there) = (host(Some("here"), &[]), host(Some("there"), &[]));
        let look = |host: &Host, policy| check(&folder, host, policy, &entropy);
        assert_eq!(look(&here, ClonePolicy::Refuse).unwrap(), Finding::First);
        assert_eq!(look(&here, ClonePolicy::Refuse).unwrap(), Finding::Same);
        let error = look(&there, ClonePolicy::Refuse).unwrap_err();
        assert_eq!(error.code(), Code::HostChanged);
        for command in ["accept-host --mesh acme", "remint --mesh acme --invite"] {
            assert!(error.cure().contains(command), "{}", error.cure());
        }
        assert_eq!(look(&there, ClonePolicy::Warn).unwrap(), Finding::Other);
        assert_eq!(look(&there, ClonePolicy::Allow).unwrap(), Finding::Other);
        assert_eq!(look(&here, ClonePolicy::Refuse).unwrap(), Finding::Same, "a warning changes nothing");
        accept(&folder, &there).unwrap();
        assert_eq!(look(&there, ClonePolicy::Refuse).unwrap(), Finding::Same);
        assert!(look(&here, ClonePolicy::Refuse).is_err());
    }

    #[test]
    fn where_nothing_can_be_read_the_check_is_off() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::open(home.path(), "acme").unwrap();
        let entropy = SeededEntropy::new(1);
        let look = |host: &Host| check(&folder, host, ClonePolicy::Refuse, &entropy).unwrap();
        assert_eq!(look(&Host::default()), Finding::Unknown);
        let text = folder.read_text(folder::HOST_FINGERPRINT).unwrap().unwrap();
        assert!(text.contains("\"random\":true"), "{text}");
        assert_eq!(look(&host(Some("here"), &[])), Finding::Unknown);
        assert_eq!(folder.read_text(folder::HOST_FINGERPRINT).unwrap().unwrap(), text, "the id is kept");
    }
}
