//! The default tenant is made once, others by operators, one at a time.

use serde_json::json;
use waybill_access::ops::{CreateTenant, ListTenants};
use waybill_access::{DEFAULT_TENANT, ServerKey, Tier, admin_caller, dev_caller, ensure_default_tenant, register};
use waybill_kernel::clock::manual::ManualSource;
use waybill_kernel::entropy::OsEntropy;
use waybill_kernel::{Code, Role, Tenant};
use waybill_store::{Backend, Registry, SqliteOptions};
use waybill_testkit::postgres::Postgres;
use waybill_testkit::stores::postgres_options;

use crate::world::{World, code, open};

#[tokio::test]
async fn the_default_tenant_is_made_once() {
    let world = World::sqlite().await;
    assert!(ensure_default_tenant(&world.store).await.unwrap().is_none());
    let list = world.run::<ListTenants>(json!({})).await.unwrap();
    assert_eq!(list.tenants.len(), 1);
    assert_eq!((list.tenants[0].name.as_str(), list.tenants[0].tier), ("default", Tier::Unlimited));
    assert_eq!(world.admin.tenant, DEFAULT_TENANT);
    let developer = dev_caller(&world.store).await.unwrap();
    assert_eq!(developer.principal.to_string(), "human:dev");
    assert!(Role::ALL.iter().all(|role| developer.has(*role)));
}

#[tokio::test]
async fn before_the_first_start_there_is_no_caller() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::at(folder.path().join("waybill.db"));
    let store = open(Backend::Sqlite(options), &ManualSource::at(1), &ServerKey::generate(&OsEntropy)).await;
    assert_eq!(code(admin_caller(&store).await), Code::DatabaseUnusable);
}

#[tokio::test]
async fn of_several_nodes_that_start_at_once_one_gets_the_key() {
    let database = Postgres::shared().await.unwrap().database().await.unwrap();
    let (time, server_key) = (ManualSource::at(1), ServerKey::generate(&OsEntropy));
    let mut nodes = Vec::new();
    for _ in 0..4 {
        nodes.push(open(Backend::Postgres(postgres_options(&database.url)), &time, &server_key).await);
    }
    let starts: Vec<_> =
        nodes.iter().cloned().map(|node| tokio::spawn(async move { ensure_default_tenant(&node).await })).collect();
    let mut keys = Vec::new();
    for start in starts {
        keys.extend(start.await.unwrap().unwrap());
    }
    assert_eq!(keys.len(), 1);
    let access = waybill_access::Access::new(nodes[3].clone(), waybill_access::Settings::default(), &server_key);
    assert_eq!(access.authenticate(keys[0].key.expose()).await.unwrap().tenant, DEFAULT_TENANT);
    nodes.iter().for_each(waybill_store::Store::close);
}

async fn many_tenants(world: World) {
    let names: Vec<_> = (0..8).map(|number| format!("tenant-{number}")).collect();
    let making = names.iter().map(|name| {
        let operation: CreateTenant = serde_json::from_value(json!({ "name": name })).unwrap();
        let (store, admin) = (world.store.clone(), world.admin.clone());
        tokio::spawn(async move { store.run(operation, admin).await.map(drop) })
    });
    for made in making.collect::<Vec<_>>() {
        made.await.unwrap().unwrap();
    }
    assert_eq!(code(world.run::<CreateTenant>(json!({"name": "tenant-3", "tier": "paid"})).await), Code::AlreadyExists);
    assert_eq!(code(world.run::<CreateTenant>(json!({"name": " "})).await), Code::InvalidRequest);

    let page = world.run::<ListTenants>(json!({"limit": 5})).await.unwrap();
    let rest = world.run::<ListTenants>(json!({"cursor": page.next_cursor})).await.unwrap();
    let mut listed: Vec<_> = page.tenants.iter().chain(&rest.tenants).map(|tenant| tenant.name.clone()).collect();
    assert_eq!(listed[0], "default", "oldest first");
    listed.sort();
    assert_eq!(listed, [&["default".to_owned()], names.as_slice()].concat());
    assert_eq!((page.tenants[1].tier, rest.next_cursor), (Tier::Free, None));

    let mut other = world.admin.clone();
    other.tenant = Tenant(2);
    assert_eq!(code(world.run_as::<CreateTenant>(&other, json!({"name": "mine"})).await), Code::Forbidden);
    assert_eq!(code(world.run_as::<ListTenants>(&other, json!({})).await), Code::Forbidden);
}

#[tokio::test]
async fn operators_make_tenants_and_others_do_not_on_sqlite() {
    many_tenants(World::sqlite().await).await;
}

#[tokio::test]
async fn operators_make_tenants_and_others_do_not_on_postgres() {
    many_tenants(World::postgres().await).await;
}

#[test]
fn every_operation_but_whoami_is_for_admins_and_none_is_a_tool() {
    let registry = register(Registry::default());
    let names: Vec<_> = registry.entries().map(|entry| entry.spec().name).collect();
    assert_eq!(
        names,
        ["create_key", "list_keys", "rotate_key", "revoke_key", "create_tenant", "list_tenants", "whoami"]
    );
    for entry in registry.entries() {
        let spec = entry.spec();
        let is_for_admins = spec.roles == [Role::Admin] && spec.scopes.len() == 1;
        assert!(!spec.tool && (is_for_admins || spec.name == "whoami"), "{}", spec.name);
        let schema = entry.input_schema();
        assert_eq!(schema["additionalProperties"], false, "{}", spec.name);
        assert!(schema["properties"].get("minted").is_none(), "{}", spec.name);
        assert!(entry.output_schema()["properties"].is_object(), "{}", spec.name);
    }
}
