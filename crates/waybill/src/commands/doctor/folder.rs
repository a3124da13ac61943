//! The data folder: is it there, is it private, who uses it, and is there room?

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use waybill_store::{Backend, safety};

use super::{Check, Scene, list};
use crate::config::Config;
use crate::data;

/// Room for so many ballasts is plenty.
const ROOM_BALLASTS: u64 = 8;

pub(super) fn examine(config: &Config, scene: &mut Scene) -> Vec<Check> {
    let data = config.data.as_path();
    if !data.is_dir() {
        let found = format!("{} is no folder", data.display());
        let cure = "Name the server's data folder with --data; the first `waybill serve` makes one.";
        return vec![Check::failed("data folder", found, cure)];
    }
    // A folder that cannot be read shows in other checks.
    scene.holder = data::holder(data).unwrap_or_default();
    let mut checks = vec![privacy(data), ownership(data), admin_key(data), server_key(config, scene), lock(scene)];
    checks.extend(files(config));
    if data::is_unfinished(data) {
        let found = "a restore into this folder has not come to its end, and no server starts here";
        checks.push(Check::failed("restore", found, data::RESTORE_AGAIN));
    }
    if let Backend::Sqlite(options) = &config.backend {
        checks.push(room(data, options.ballast_bytes));
    }
    checks
}

/// Permission bits for others than the owner.
fn open_bits(path: &Path) -> Option<u32> {
    let mode = fs::metadata(path).ok()?.permissions().mode();
    (mode & 0o077 != 0).then_some(mode & 0o777)
}

fn privacy(data: &Path) -> Check {
    let shown = data.display();
    match open_bits(data) {
        None => Check::ok("data folder", format!("{shown}, for its owner only")),
        Some(mode) => {
            let found = format!("{shown} is open to others ({mode:o})");
            Check::warning("data folder", found, format!("chmod 700 {shown}"))
        }
    }
}

/// The same that `serve` refuses.
fn ownership(data: &Path) -> Check {
    const NAME: &str = "ownership";
    match data::exposures(data) {
        Err(error) => {
            Check::failed(NAME, format!("{} cannot be looked at: {error}", data.display()), "See who owns it.")
        }
        Ok(found) if found.is_empty() => Check::ok(NAME, "nobody else may write here, and nothing is a link"),
        Ok(found) => {
            let cures: Vec<_> = found.iter().map(|exposure| exposure.cure.clone()).collect();
            let found: Vec<_> = found.iter().map(ToString::to_string).collect();
            Check::failed(NAME, list(&found), list(&cures))
        }
    }
}

fn server_key(config: &Config, scene: &mut Scene) -> Check {
    const NAME: &str = "server key";
    let key = match data::server_key(&config.data, config.server_key_file.as_deref()) {
        Err(error) => return Check::of_error(NAME, &error),
        Ok(None) => return Check::ok(NAME, "none yet; the next start of the server makes it"),
        Ok(Some(key)) => key,
    };
    scene.server_key_id = Some(key.id().to_owned());
    let path = config.data.join(data::SERVER_KEY);
    match open_bits(&path) {
        Some(mode) if config.server_key_file.is_none() => {
            let cure =
                format!("chmod 600 {}, and `waybill server-key rotate` if anybody may have read it.", path.display());
            Check::failed(NAME, format!("{} is open to others ({mode:o})", path.display()), cure)
        }
        _ => Check::ok(NAME, format!("{}, for its owner only", key.id())),
    }
}

fn admin_key(data: &Path) -> Check {
    const NAME: &str = "admin key";
    let path = data.join(data::ADMIN_KEY);
    match (path.exists(), open_bits(&path)) {
        (false, _) => Check::ok(NAME, "none lies here; commands need --key"),
        (true, None) => Check::ok(NAME, "for its owner only"),
        (true, Some(mode)) => {
            let cure = format!("chmod 600 {}, and rotate the key if anybody may have read it.", path.display());
            Check::failed(NAME, format!("{} is open to others ({mode:o})", path.display()), cure)
        }
    }
}

/// Those that hold what callers have sent, the shards' among them.
fn files(config: &Config) -> Option<Check> {
    let mut paths: Vec<_> = data::CONTENTS.iter().map(|name| config.data.join(name)).collect();
    for shard in &config.shards {
        if let Backend::Sqlite(options) = &shard.backend {
            paths.extend(data::contents_of(&options.path));
        }
    }
    paths.retain(|path| open_bits(path).is_some());
    if paths.is_empty() {
        return None;
    }
    let names: Vec<_> = paths.iter().filter_map(|path| Some(path.file_name()?.display().to_string())).collect();
    let found = format!("open to others, should the folder ever be: {}", names.join(", "));
    let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    Some(Check::warning("files", found, format!("chmod 600 {}", paths.join(" "))))
}

fn lock(scene: &Scene) -> Check {
    match &scene.holder {
        Some(pid) => Check::ok("lock", format!("held by process {pid}")),
        None => Check::ok("lock", "free: no server runs on this folder"),
    }
}

fn room(data: &Path, ballast_bytes: u64) -> Check {
    const NAME: &str = "disk";
    const MIB: u64 = 1 << 20;
    let free = safety::free_bytes(&data.join("waybill.db"));
    let given_back = fs::metadata(data.join("waybill.ballast")).is_ok_and(|file| file.len() == 0);
    let unit = if ballast_bytes == 0 { 16 * MIB } else { ballast_bytes };
    let shown = format!("{} MiB free", free / MIB);
    let cure = "Make room on the data folder's disk; the server notices by itself.";
    // The same margin by which the server takes its ballast again.
    if free < unit / 4 {
        Check::failed(NAME, format!("{shown}: full"), cure)
    } else if ballast_bytes > 0 && given_back {
        Check::warning(NAME, format!("{shown}, but the ballast is given back: the disk has been full"), cure)
    } else if free < ROOM_BALLASTS * unit {
        Check::warning(NAME, format!("{shown}: nearly full"), cure)
    } else {
        Check::ok(NAME, shown)
    }
}
