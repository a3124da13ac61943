//! The archive that the Python server has written, if it is there.

use std::path::Path;
use std::process::Command;

use waybill_archive::layout::{Legacy, Scanned, read_legacy_message};

/// Unpacked from `../shared/samples` beside the repository.
fn sample() -> Option<tempfile::TempDir> {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/samples/agent-mail-python.tar.xz");
    if !packed.exists() {
        assert!(std::env::var_os("CI").is_none(), "there is no sample of an existing archive at {}", packed.display());
        eprintln!("skipped: there is no sample of an existing archive");
        return None;
    }
    let temp = tempfile::tempdir().unwrap();
    let unpacked = Command::new("tar").arg("xf").arg(&packed).arg("-C").arg(temp.path()).status().unwrap();
    assert!(unpacked.success());
    Some(temp)
}

#[test]
fn the_archive_of_the_python_server_is_read() {
    let Some(temp) = sample() else { return };
    let legacy = Legacy::open(&temp.path().join("agent-mail-python/archive")).unwrap();
    assert_eq!(legacy.refused.told, []);
    let [backend, front] = legacy.projects.as_slice() else { panic!("{} projects", legacy.projects.len()) };
    assert_eq!(
        (backend.slug.as_str(), backend.human_key.as_deref()),
        ("data-projects-backend", Some("/data/projects/backend"))
    );
    assert_eq!(
        (front.slug.as_str(), front.human_key.as_deref()),
        ("data-projects-front-end", Some("/data/projects/front end"))
    );
    assert_eq!(backend.messages.len() + front.messages.len(), 17);
    let names: Vec<&str> = backend.agents.iter().chain(&front.agents).map(|agent| agent.name.as_str()).collect();
    assert_eq!(names, ["GreenCastle", "BlueLake", "RedStone", "BrownBear"]);
    assert_eq!(backend.reservations.len(), 3);
    assert_eq!(backend.reservations.iter().filter(|one| one.released_ts.is_some()).count(), 1);
    let ids: Vec<i64> = backend.messages.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, (1..=15).collect::<Vec<_>>());

    let read = |project: &Scanned, id: i64| {
        let (id, path) = project.messages.iter().find(|(known, _)| *known == id).unwrap();
        read_legacy_message(project, *id, path).unwrap().message
    };
    let plan = read(backend, 1);
    assert_eq!(
        (plan.to.as_slice(), plan.cc.as_slice()),
        (["BlueLake".to_owned()].as_slice(), ["RedStone".to_owned()].as_slice())
    );
    assert_eq!(plan.created.micros(), 1_794_854_601_001_411);
    assert_eq!(plan.body, "# Plan\n\n- write tests\n- **TODO** docs\n\nUmlaute: äöü, 漢字, emoji 🚢");
    assert!(plan.ack_required && plan.importance == "high" && plan.thread_id.as_deref() == Some("PLAN-1"));
    assert!(!plan.intro && read(front, 16).intro, "a request for contact is known as one");
    assert_eq!(read(backend, 2).bcc, ["RedStone"]);
    assert_eq!(read(backend, 3).body, "Agreed.\n\n---\nfront matter look-alike\n---");
    assert_eq!(read(backend, 5).body, "line\r\nend", "line ends of other systems stay");
    assert_eq!(read(front, 17).from_project.as_deref(), Some("/data/projects/backend"));
}
