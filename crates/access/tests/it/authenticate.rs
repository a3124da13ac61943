//! Good, wrong, unknown, expired and revoked keys, and what a process remembers of them.

use std::time::Duration;

use serde_json::json;
use waybill_access::ops::{CreateKey, RevokeKey, RotateKey};
use waybill_access::{Access, Key, KeyId, Settings};
use waybill_kernel::entropy::OsEntropy;
use waybill_kernel::{Code, Mode, Result, Role, Scope};
use waybill_store::{Ctx, Tx, Value, Work};

use crate::world::World;

/// The same key id with another secret, checksum and all.
fn with_other_secret(id: KeyId) -> String {
    let mut key = Key::generate(&OsEntropy);
    key.id = id;
    key.reveal().expose().to_owned()
}

#[tokio::test]
async fn a_good_key_is_verified_once_and_then_remembered() {
    let world = World::sqlite().await;
    let key = world.first_key.key.expose();
    let caller = world.access.authenticate(key).await.unwrap();
    assert_eq!(caller.principal.to_string(), "human:admin");
    assert_eq!((caller.tenant, caller.tenant_id), (world.admin.tenant, world.admin.tenant_id));
    assert_eq!((caller.key, world.admin.key), (Some(world.first_key.key_id), None));
    assert!(caller.has(Role::Admin) && Scope::ALL.iter().all(|scope| caller.scopes.contains(*scope)));
    for _ in 0..100 {
        world.access.authenticate(key).await.unwrap();
        world.pass(45);
    }
    assert_eq!(world.access.verifications(), 1);
}

#[tokio::test]
async fn many_first_uses_at_once_verify_once() {
    let world = World::sqlite().await;
    let attempts: Vec<_> = (0..64)
        .map(|_| {
            let (access, key) = (world.access.clone(), world.first_key.key.clone());
            tokio::spawn(async move { access.authenticate(key.expose()).await.map(drop) })
        })
        .collect();
    for attempt in attempts {
        attempt.await.unwrap().unwrap();
    }
    assert_eq!(world.access.verifications(), 1);
}

async fn wrong_secrets_and_unknown_ids_are_refused_unhashed_and_say_the_same(world: World) {
    let wrong = with_other_secret(world.first_key.key_id);
    let unknown = Key::generate(&OsEntropy).reveal();
    let mut told = Vec::new();
    for key in [wrong.as_str(), unknown.expose()] {
        told.push(world.access.authenticate(key).await.unwrap_err());
        // A client that does not give up is told from memory.
        assert_eq!(world.refusal(key).await, Some(Code::Unauthorized));
    }
    told.push(world.access.authenticate("Basic dXNlcg==").await.unwrap_err());
    told.push(world.access.authenticate(&world.first_key.key.expose()[..53]).await.unwrap_err());
    for error in &told {
        assert_eq!(error.code(), Code::Unauthorized);
        assert_eq!(error.to_json(), told[0].to_json());
    }
    assert_eq!(world.access.verifications(), 0);
    // The right key is none the worse for it.
    assert_eq!(world.refusal(world.first_key.key.expose()).await, None);
    assert_eq!(world.access.verifications(), 1);
}

#[tokio::test]
async fn wrong_secrets_and_unknown_ids_are_refused_unhashed_on_sqlite() {
    wrong_secrets_and_unknown_ids_are_refused_unhashed_and_say_the_same(World::sqlite().await).await;
}

#[tokio::test]
async fn wrong_secrets_and_unknown_ids_are_refused_unhashed_on_postgres() {
    wrong_secrets_and_unknown_ids_are_refused_unhashed_and_say_the_same(World::postgres().await).await;
}

#[tokio::test]
async fn an_expiry_holds_at_once_and_so_does_a_revocation() {
    let world = World::sqlite().await;
    let short = world.run::<CreateKey>(json!({"principal": "agent:a", "expires_in_seconds": 10})).await.unwrap();
    assert_eq!(world.refusal(short.bearer()).await, None);
    world.pass(9);
    assert_eq!(world.refusal(short.bearer()).await, None);
    world.pass(2);
    assert_eq!(world.refusal(short.bearer()).await, Some(Code::Unauthorized));

    let key = world.first_key.key.expose();
    assert_eq!(world.refusal(key).await, None);
    let rotate = json!({"key_id": world.first_key.key_id, "overlap_seconds": 5});
    let successor = world.run::<RotateKey>(rotate).await.unwrap();
    assert_eq!(world.refusal(key).await, None);
    world.pass(6);
    assert_eq!(world.refusal(key).await, Some(Code::Unauthorized), "the new end is known");

    let key = successor.bearer();
    assert_eq!(world.refusal(key).await, None);
    let verified = world.access.verifications();
    world.run::<RevokeKey>(json!({"key_id": successor.key_id})).await.unwrap();
    assert_eq!(world.refusal(key).await, Some(Code::Unauthorized));
    assert_eq!(world.access.verifications(), verified, "its row was read, nothing more");
    // A process that has never seen it does not let it in either.
    let elsewhere = world.another_access();
    assert_eq!(elsewhere.authenticate(key).await.unwrap_err().code(), Code::Unauthorized);
    assert_eq!(elsewhere.verifications(), 0, "what opens nothing is not hashed");
}

/// A revocation of which this process hears nothing.
struct RevokedUnheard(KeyId);

impl Work for RevokedUnheard {
    type Output = u64;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<u64> {
        const UPDATE: &str = "UPDATE api_keys SET revoked_at = $2 WHERE key_id = $1";
        tx.execute(UPDATE, &[Value::from(self.0.as_str()), Value::from(ctx.now)]).await
    }
}

#[tokio::test]
async fn a_revocation_that_went_unheard_holds_after_the_recheck() {
    let world = World::sqlite().await;
    let key = world.first_key.key.expose();
    assert_eq!(world.refusal(key).await, None);
    assert_eq!(world.store.system().run(RevokedUnheard(world.first_key.key_id)).await.unwrap(), 1);
    assert_eq!(world.refusal(key).await, None, "not asked yet");
    world.pass(61);
    assert_eq!(world.refusal(key).await, Some(Code::Unauthorized));
}

#[tokio::test]
async fn a_revocation_that_is_repeated_holds_at_once_where_it_is_repeated() {
    let world = World::sqlite().await;
    let key = world.first_key.key.expose();
    assert_eq!(world.refusal(key).await, None);
    world.store.system().run(RevokedUnheard(world.first_key.key_id)).await.unwrap();
    assert!(!world.run::<RevokeKey>(json!({"key_id": world.first_key.key_id})).await.unwrap().ok);
    assert_eq!(world.refusal(key).await, Some(Code::Unauthorized));
}

/// Those who were let in with a key learn of its end; the clock stands still unless it is moved.
async fn whoever_stays_learns_of_the_end(world: World) {
    const AT_ONCE: Duration = Duration::from_secs(30);
    const A_MOMENT: Duration = Duration::from_millis(50);
    let id = world.first_key.key_id;
    assert_eq!(world.refusal(world.first_key.key.expose()).await, None);
    let staying: Vec<_> = (0..100)
        .map(|_| {
            let access = world.access.clone();
            tokio::spawn(async move { access.ended(id).await })
        })
        .collect();
    // A successor that leaves the old key a while is word of it, and not its end.
    let next = world.run::<RotateKey>(json!({"key_id": id, "overlap_seconds": 1000})).await.unwrap();
    assert!(tokio::time::timeout(A_MOMENT, world.access.ended(id)).await.is_err());
    assert!(staying.iter().all(|stay| !stay.is_finished()));
    world.run::<RevokeKey>(json!({"key_id": id})).await.unwrap();
    for stay in staying {
        tokio::time::timeout(AT_ONCE, stay).await.unwrap().unwrap();
    }
    // Also of an end that came before, with and without this process having seen the key.
    tokio::time::timeout(AT_ONCE, world.access.ended(id)).await.unwrap();
    let elsewhere = world.another_access();
    tokio::time::timeout(AT_ONCE, elsewhere.ended(id)).await.unwrap();
    assert!(tokio::time::timeout(A_MOMENT, elsewhere.ended(next.key_id)).await.is_err());

    let short = world.run::<CreateKey>(json!({"principal": "agent:a", "expires_in_seconds": 10})).await.unwrap();
    assert_eq!(world.refusal(short.bearer()).await, None);
    world.pass(11);
    tokio::time::timeout(AT_ONCE, world.access.ended(short.key_id)).await.unwrap();
}

#[tokio::test]
async fn whoever_stays_learns_of_the_end_on_sqlite() {
    whoever_stays_learns_of_the_end(World::sqlite().await).await;
}

#[tokio::test]
async fn whoever_stays_learns_of_the_end_on_postgres() {
    whoever_stays_learns_of_the_end(World::postgres().await).await;
}

#[tokio::test]
async fn another_node_hears_of_a_revocation() {
    let world = World::postgres().await;
    let key = world.first_key.key.expose();
    let node = Access::new(world.another_node().await, Settings::default(), &world.server_key);
    assert!(node.authenticate(key).await.is_ok());
    world.run::<RevokeKey>(json!({"key_id": world.first_key.key_id})).await.unwrap();
    // The clock of both stands still: only word of it can end the key before the recheck.
    let refused = async {
        while node.authenticate(key).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), refused).await.unwrap();
}

#[tokio::test]
async fn a_database_that_cannot_be_read_says_nothing_about_the_key() {
    let world = World::sqlite().await;
    let key = world.first_key.key.expose();
    assert_eq!(world.refusal(key).await, None);
    world.store.close();
    assert_eq!(world.refusal(key).await, None, "remembered");
    world.pass(31);
    assert_eq!(world.refusal(key).await, None, "the early look failed, the bound is not reached");
    world.pass(31);
    assert_eq!(world.refusal(key).await, Some(Code::ShuttingDown));
    let unknown = Key::generate(&OsEntropy).reveal();
    assert_eq!(world.refusal(unknown.expose()).await, Some(Code::ShuttingDown));
}
