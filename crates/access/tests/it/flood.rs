//! Floods of keys that nobody made, and keys that no digest speaks for.

use serde_json::json;
use waybill_access::ops::{CreateKey, RotateKey};
use waybill_access::{Access, Agreement, Key, KeyId, ServerKey, Settings, adopt_server_key, agree_on_server_key};
use waybill_kernel::entropy::OsEntropy;
use waybill_kernel::{Code, Mode, Result};
use waybill_store::{Ctx, Tx, Value, Work};

use crate::world::World;

/// More than stand in any line of verifications, and in flight at once.
const FLOOD: usize = 1000;

/// Both engines run the same cases.
macro_rules! both {
    ($($case:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $case() {
                super::$case(super::World::sqlite().await).await;
            })+
        }

        mod postgres {
            $(#[tokio::test]
            async fn $case() {
                super::$case(super::World::postgres().await).await;
            })+
        }
    };
}

both! {
    made_up_keys_hold_no_good_one_up,
    a_key_without_a_digest_gets_one_at_its_first_use,
    wrong_secrets_for_a_key_without_a_digest_are_bounded,
    another_server_key_refuses_no_good_key,
    every_way_of_making_a_key_gives_it_a_digest,
    a_database_goes_with_the_first_server_key_until_another_is_adopted,
}

fn unknown(_: usize) -> String {
    Key::generate(&OsEntropy).reveal().expose().to_owned()
}

fn with_other_secret(id: KeyId) -> String {
    let mut key = Key::generate(&OsEntropy);
    key.id = id;
    key.reveal().expose().to_owned()
}

/// The codes of attempts that are all under way at once.
async fn attempts(access: &Access, keys: impl IntoIterator<Item = String>) -> Vec<Option<Code>> {
    let tasks: Vec<_> = keys
        .into_iter()
        .map(|key| {
            let access = access.clone();
            tokio::spawn(async move { access.authenticate(&key).await.err().map(|error| error.code()) })
        })
        .collect();
    let mut codes = Vec::new();
    for task in tasks {
        codes.push(task.await.unwrap());
    }
    codes
}

/// As a program from before digests has left it.
struct WithoutDigest(KeyId);

impl Work for WithoutDigest {
    type Output = ();

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<()> {
        const UPDATE: &str = "UPDATE api_keys SET digest = NULL, digest_under = NULL WHERE key_id = $1";
        tx.execute(UPDATE, &[Value::from(self.0.as_str())]).await.map(drop)
    }
}

/// Under which server key a key has a digest.
struct DigestUnder(KeyId);

impl Work for DigestUnder {
    type Output = Option<String>;

    fn mode(&self) -> Mode {
        Mode::Read
    }

    async fn run(&self, _: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Option<String>> {
        const SELECT: &str = "SELECT digest_under FROM api_keys WHERE key_id = $1 AND length(digest) = 32";
        let row = tx.query_opt(SELECT, &[Value::from(self.0.as_str())]).await?;
        row.map(|row| row.text(0).map(str::to_owned)).transpose()
    }
}

async fn digest_under(world: &World, id: KeyId) -> Option<String> {
    world.store.system().run(DigestUnder(id)).await.unwrap()
}

async fn made_up_keys_hold_no_good_one_up(world: World) {
    let mut keys: Vec<String> = (0..FLOOD).map(unknown).collect();
    // Behind all the others, and never seen by this process.
    keys.push(world.first_key.key.expose().to_owned());
    let codes = attempts(&world.access, keys).await;
    assert_eq!(codes[FLOOD], None, "the good key");
    assert!(codes[..FLOOD].iter().all(|code| *code == Some(Code::Unauthorized)), "nobody was told to come back");
    assert_eq!(world.access.verifications(), 1, "the good key's own");
    // Nor do wrong secrets of a key that is known.
    let wrong = (0..FLOOD).map(|_| with_other_secret(world.first_key.key_id));
    let codes = attempts(&world.another_access(), wrong).await;
    assert!(codes.iter().all(|code| *code == Some(Code::Unauthorized)));
}

async fn a_key_without_a_digest_gets_one_at_its_first_use(world: World) {
    let (id, key) = (world.first_key.key_id, world.first_key.key.expose().to_owned());
    world.store.system().run(WithoutDigest(id)).await.unwrap();
    assert_eq!(digest_under(&world, id).await, None);
    // However many requests bring it at once.
    let codes = attempts(&world.access, vec![key.clone(); 200]).await;
    assert!(codes.iter().all(Option::is_none), "{codes:?}");
    assert_eq!(world.access.verifications(), 1);
    assert_eq!(digest_under(&world, id).await.as_deref(), Some(world.server_key.id()));
    let restarted = world.another_access();
    assert!(restarted.authenticate(&with_other_secret(id)).await.is_err());
    assert_eq!(restarted.verifications(), 0);
    assert!(restarted.authenticate(&key).await.is_ok());
}

async fn wrong_secrets_for_a_key_without_a_digest_are_bounded(world: World) {
    let other = world.run::<CreateKey>(json!({"principal": "agent:other"})).await.unwrap();
    for id in [world.first_key.key_id, other.key_id] {
        world.store.system().run(WithoutDigest(id)).await.unwrap();
    }
    let proven = world.run::<CreateKey>(json!({"principal": "agent:proven"})).await.unwrap();
    let mut keys: Vec<String> = (0..FLOOD).map(|_| with_other_secret(world.first_key.key_id)).collect();
    keys.extend([&other, &proven].map(|made| made.bearer().to_owned()));
    let codes = attempts(&world.access, keys).await;
    assert_eq!(codes[FLOOD..], [None, None], "other keys, with a digest and without");
    let flood = &codes[..FLOOD];
    assert!(flood.iter().all(|code| matches!(code, Some(Code::Unauthorized | Code::Overloaded))), "{flood:?}");
    assert!(flood.contains(&Some(Code::Overloaded)), "only a few of them wait at a time");
    // Whoever has the flooded key comes in as soon as there is a place.
    assert_eq!(world.refusal(world.first_key.key.expose()).await, None);
}

async fn another_server_key_refuses_no_good_key(world: World) {
    let (id, key) = (world.first_key.key_id, world.first_key.key.expose());
    let other = ServerKey::generate(&OsEntropy);
    let access = Access::new(world.store.clone(), Settings::default(), &other);
    assert!(access.authenticate(&with_other_secret(id)).await.is_err());
    assert_eq!(access.verifications(), 1, "only the hash can tell");
    assert!(access.authenticate(key).await.is_ok());
    assert_eq!(digest_under(&world, id).await.as_deref(), Some(other.id()));
    // And back.
    assert_eq!(world.refusal(key).await, None);
    assert_eq!(digest_under(&world, id).await.as_deref(), Some(world.server_key.id()));
}

async fn every_way_of_making_a_key_gives_it_a_digest(world: World) {
    let made = world.run::<CreateKey>(json!({"principal": "agent:a"})).await.unwrap();
    let next = world.run::<RotateKey>(json!({"key_id": made.key_id})).await.unwrap();
    for id in [world.first_key.key_id, made.key_id, next.key_id] {
        assert_eq!(digest_under(&world, id).await.as_deref(), Some(world.server_key.id()));
    }
}

async fn a_database_goes_with_the_first_server_key_until_another_is_adopted(world: World) {
    let (first, other) = (&world.server_key, ServerKey::generate(&OsEntropy));
    for key in [first, first] {
        assert_eq!(agree_on_server_key(&world.store, key).await.unwrap(), Agreement::Same);
    }
    let told = agree_on_server_key(&world.store, &other).await.unwrap();
    assert_eq!(told, Agreement::Other(first.id().to_owned()));
    adopt_server_key(&world.store, &other).await.unwrap();
    assert_eq!(agree_on_server_key(&world.store, &other).await.unwrap(), Agreement::Same);
    assert_eq!(agree_on_server_key(&world.store, first).await.unwrap(), Agreement::Other(other.id().to_owned()));
}

#[tokio::test]
async fn too_many_good_keys_at_once_are_told_to_come_back() {
    let world = World::sqlite().await;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut keys = Vec::new();
    for number in 0..cores + 6 {
        let made = world.run::<CreateKey>(json!({"principal": format!("agent:{number}")})).await.unwrap();
        keys.push(made.bearer().to_owned());
    }
    let settings = Settings { verifications_waiting_max: 0, ..Settings::default() };
    let access = Access::new(world.store.clone(), settings, &world.server_key);
    let codes = attempts(&access, keys.clone()).await;
    assert!(codes.contains(&None) && codes.contains(&Some(Code::Overloaded)), "{codes:?}");
    // One after the other all of them come in.
    for key in keys {
        assert!(access.authenticate(&key).await.is_ok());
    }
}
