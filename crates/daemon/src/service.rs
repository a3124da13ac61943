//! The daemon as a service of the system: a hardened systemd unit, or a launchd agent on macOS. Written, never started: whoever
//! installs it decides when.

use std::path::{Path, PathBuf};

use waybill_kernel::{Code, Error, Result};

use crate::folder::check_slug;

/// Ends that no restart mends: a person has to look. See the catalogue of errors.
const NEEDS_A_PERSON: &str = "2 3 73 74 75 77 78 80 81 82 83";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manager {
    Systemd,
    Launchd,
}

impl Manager {
    pub const fn of_this_system() -> Self {
        if cfg!(target_os = "macos") { Self::Launchd } else { Self::Systemd }
    }
}

/// For whom it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    User,
    System,
}

/// What a unit is made of.
pub struct Service<'a> {
    pub slug: &'a str,
    pub program: &'a Path,
    /// WAYBILL_HOME.
    pub home: &'a Path,
    /// The user's own folder.
    pub user_home: &'a Path,
    /// Who it runs as, for a unit of the system.
    pub user: &'a str,
}

/// A file to be written, and what to run then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    pub path: PathBuf,
    pub text: String,
    pub start: String,
    pub stop: String,
}

impl Service<'_> {
    pub fn unit(&self, manager: Manager, scope: Scope) -> Result<Unit> {
        check_slug(self.slug)?;
        let words =
            [self.program, self.home].map(|path| path.to_str().filter(|text| !text.contains(['\n', '\r', '\0'])));
        let [Some(program), Some(home)] = words else {
            return Err(Error::new(Code::PathUnusable, "A path that is no plain text cannot stand in a unit."));
        };
        Ok(match manager {
            Manager::Systemd => self.systemd(scope, program, home),
            Manager::Launchd => self.launchd(scope, program, home),
        })
    }

    fn systemd(&self, scope: Scope, program: &str, home: &str) -> Unit {
        let slug = self.slug;
        let name = format!("waybill-daemon-{slug}.service");
        let (folder, wanted_by, user, flag) = match scope {
            Scope::User => (self.user_home.join(".config/systemd/user"), "default.target", String::new(), " --user"),
            Scope::System => {
                (PathBuf::from("/etc/systemd/system"), "multi-user.target", format!("User={}\n", self.user), "")
            }
        };
        // Of a home below /tmp nothing would be seen in a /tmp of the unit's own.
        let private_tmp = if Path::new(home).starts_with("/tmp") { "no" } else { "yes" };
        let (program, home) = (quoted(program), quoted(home));
        let text = format!(
            "[Unit]\n\
             Description=Waybill daemon of the mesh {slug}\n\
             After=network-online.target\n\
             Wants=network-online.target\n\
             \n\
             [Service]\n\
             Type=exec\n\
             {user}Environment=\"WAYBILL_HOME={home}\"\n\
             ExecStart=\"{program}\" daemon up --mesh {slug} --foreground --persistent\n\
             Restart=on-failure\n\
             RestartSec=5\n\
             RestartPreventExitStatus={NEEDS_A_PERSON}\n\
             KillMode=mixed\n\
             TimeoutStopSec=30\n\
             UMask=0077\n\
             NoNewPrivileges=yes\n\
             ProtectSystem=strict\n\
             ProtectHome=read-only\n\
             ReadWritePaths=\"{home}\"\n\
             PrivateTmp={private_tmp}\n\
             ProtectKernelTunables=yes\n\
             ProtectKernelModules=yes\n\
             ProtectKernelLogs=yes\n\
             ProtectControlGroups=yes\n\
             ProtectClock=yes\n\
             RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK\n\
             RestrictRealtime=yes\n\
             RestrictSUIDSGID=yes\n\
             LockPersonality=yes\n\
             SystemCallArchitectures=native\n\
             # Hooks are fenced with namespaces of their own, so making them stays allowed.\n\
             RestrictNamespaces=user net mnt pid ipc uts\n\
             \n\
             [Install]\n\
             WantedBy={wanted_by}\n"
        );
        Unit {
            path: folder.join(&name),
            text,
            start: format!("systemctl{flag} daemon-reload && systemctl{flag} enable --now {name}"),
            stop: format!("systemctl{flag} disable --now {name}"),
        }
    }

    fn launchd(&self, scope: Scope, program: &str, home: &str) -> Unit {
        let slug = self.slug;
        let label = format!("dev.waybill.daemon.{slug}");
        let (folder, domain) = match scope {
            Scope::User => (self.user_home.join("Library/LaunchAgents"), "gui/$(id -u)"),
            Scope::System => (PathBuf::from("/Library/LaunchDaemons"), "system"),
        };
        let user = match scope {
            Scope::User => String::new(),
            Scope::System => format!("  <key>UserName</key><string>{}</string>\n", xml(self.user)),
        };
        let (program, home) = (xml(program), xml(home));
        let text = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">\n\
             <plist version=\"1.0\">\n\
             <dict>\n\
             \x20 <key>Label</key><string>{label}</string>\n\
             \x20 <key>ProgramArguments</key>\n\
             \x20 <array>\n\
             \x20   <string>{program}</string><string>daemon</string><string>up</string>\n\
             \x20   <string>--mesh</string><string>{slug}</string>\n\
             \x20   <string>--foreground</string><string>--persistent</string>\n\
             \x20 </array>\n\
             \x20 <key>EnvironmentVariables</key>\n\
             \x20 <dict><key>WAYBILL_HOME</key><string>{home}</string></dict>\n\
             {user}\
             \x20 <key>RunAtLoad</key><true/>\n\
             \x20 <key>KeepAlive</key><dict><key>SuccessfulExit</key><false/></dict>\n\
             \x20 <key>ThrottleInterval</key><integer>5</integer>\n\
             \x20 <key>Umask</key><integer>63</integer>\n\
             \x20 <key>ProcessType</key><string>Background</string>\n\
             </dict>\n\
             </plist>\n"
        );
        let path = folder.join(format!("{label}.plist"));
        let shown = path.display();
        Unit {
            start: format!("launchctl bootstrap {domain} {shown}"),
            stop: format!("launchctl bootout {domain}/{label}"),
            text,
            path,
        }
    }
}

/// Within quotes of a unit: there `%` begins a specifier and `$` a variable.
fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$")
}

fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service<'a>(program: &'a str, home: &'a str) -> Service<'a> {
        let user_home = Path::new("/home/ann");
        Service { slug: "acme", program: Path::new(program), home: Path::new(home), user_home, user: "ann" }
    }

    #[test]
    fn a_unit_of_the_user_runs_the_daemon_and_little_else() {
        let unit = service("/usr/bin/waybill", "/home/ann/.local/share/waybill/mesh")
            .unit(Manager::Systemd, Scope::User)
            .unwrap();
        assert_eq!(unit.path, Path::new("/home/ann/.config/systemd/user/waybill-daemon-acme.service"));
        for line in [
            "ExecStart=\"/usr/bin/waybill\" daemon up --mesh acme --foreground --persistent",
            "Environment=\"WAYBILL_HOME=/home/ann/.local/share/waybill/mesh\"",
            "NoNewPrivileges=yes",
            "ProtectSystem=strict",
            "PrivateTmp=yes",
            "WantedBy=default.target",
        ] {
            assert!(unit.text.lines().any(|found| found == line), "{line} in\n{}", unit.text);
        }
        assert!(!unit.text.contains("User=") && unit.start.contains("--user"));
        let system = service("/usr/bin/waybill", "/tmp/x").unit(Manager::Systemd, Scope::System).unwrap();
        assert!(system.text.contains("\nUser=ann\n") && system.text.contains("PrivateTmp=no"));
        assert_eq!(system.path, Path::new("/etc/systemd/system/waybill-daemon-acme.service"));
    }

    #[test]
    fn paths_say_nothing_but_paths() {
        let odd = "/opt/a b/100%/\"q\"/$x";
        let unit = service(odd, odd).unit(Manager::Systemd, Scope::User).unwrap();
        assert!(unit.text.contains("ExecStart=\"/opt/a b/100%%/\\\"q\\\"/$$x\" daemon up"), "{}", unit.text);
        let plist = service("/opt/<a>&b", "/h").unit(Manager::Launchd, Scope::User).unwrap();
        assert!(plist.text.contains("<string>/opt/&lt;a&gt;&amp;b</string>"), "{}", plist.text);
        assert!(plist.path.ends_with("dev.waybill.daemon.acme.plist"));
        let evil = service("/opt/x\nExecStartPre=evil", "/h").unit(Manager::Systemd, Scope::User);
        assert_eq!(evil.unwrap_err().code(), Code::PathUnusable);
        let slug = Service { slug: "../evil", ..service("/x", "/h") }.unit(Manager::Systemd, Scope::User);
        assert_eq!(slug.unwrap_err().code(), Code::InvalidRequest);
    }
}
