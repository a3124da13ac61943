//! The children of this process, as /proc shows them.
//!
//! A child's number stays its own until its parent has taken its end, so whoever kills only its own children and takes
//! their ends itself never meets a stranger. Killing children is enough: what a dead child leaves behind becomes a child of
//! the nearest ancestor that adopts orphans (a subreaper), and is found there.

use rustix::process::{Pid, Signal, getpgrp, getpid, kill_process, kill_process_group};

pub struct Child {
    pub pid: Pid,
    group: Option<Pid>,
}

impl Child {
    /// With its group, so that one which starts others faster than they are found is stopped at once. Never with ours.
    pub fn kill(&self) {
        if let Some(group) = self.group.filter(|group| *group != getpgrp()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = kill_process(self.pid, Signal::KILL);
    }
}

/// Living or dead, in no order. Empty where there is no /proc.
pub fn children() -> Vec<Child> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    names.filter_map(Pid::from_raw).filter_map(child).collect()
}

fn child(pid: Pid) -> Option<Child> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let (parent, group) = parse(&String::from_utf8_lossy(&stat))?;
    (parent == getpid().as_raw_pid()).then(|| Child { pid, group: Pid::from_raw(group) })
}

/// The parent and the group. The name before them may hold anything, brackets as well.
fn parse(stat: &str) -> Option<(i32, i32)> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(1);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_numbers_hides_nothing() {
        assert_eq!(parse("7 (sh) S 3 5 5 0 -1"), Some((3, 5)));
        assert_eq!(parse("7 (a) R 1 1 (b) S 3 5 5 0 -1"), Some((3, 5)));
        assert_eq!(parse("7 (sh) S"), None);
        assert_eq!(parse(""), None);
    }
}
