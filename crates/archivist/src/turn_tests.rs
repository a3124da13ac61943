use bytes::Bytes;
use waybill_archive::layout::ProjectFile;
use waybill_kernel::{Tenant, Time};
use waybill_testkit::stores;

use super::*;
use crate::draft::Line;
use crate::{Item, Owner};

/// What a file cannot hold is left out, and the rest of the window is written.
#[tokio::test]
async fn state_that_cannot_be_filed_stands_in_nobodys_way() {
    let (on, folder) = (stores::open_sqlite().await.unwrap(), tempfile::tempdir().unwrap());
    let settings = Settings::default();
    let archive = Arc::new(Archive::new(folder.path().to_owned(), settings.limits()));
    let hand = Hand { store: on.store.clone(), archive, settings: Arc::new(settings), watch: None };
    let at = Time::from_micros(1_767_225_600_000_000);
    let owner = Owner {
        tenant: Tenant(1),
        tenant_name: "default".to_owned(),
        project: 1,
        slug: "data-p".to_owned(),
        human_key: "/data/p".to_owned(),
        created_at: at,
    };
    let project = ProjectFile {
        id: 1,
        slug: owner.slug.clone(),
        human_key: owner.human_key.clone(),
        created_ts: at,
        tenant: None,
    };
    let unfileable = Item::Attachment { sha256: "../x".to_owned(), content: Bytes::new() };
    let mut draft = Draft::new(owner.clone(), at);
    draft.lines.push(Line::state("BlueLake"));
    draft.items.push(unfileable.clone());
    draft.items.push(Item::Project(project));
    let mut done = Done::default();
    assert!(matches!(hand.write(draft.clone(), 1, &mut done).await, Err(Trouble::Archive(ArchiveError::Path(_)))));
    hand.write_state(draft.clone(), 1, &mut done).await.unwrap();
    let written = owner.key().below(folder.path()).join("files");
    assert!(written.join("project.json").is_file());
    // Nothing but that: there is nothing to write, and it is no failure.
    draft.items = vec![unfileable];
    hand.write_state(draft, 1, &mut done).await.unwrap();
}
