use serde_json::json;
use waybill_kernel::{Caller, Code, Scope, Scopes};
use waybill_testkit::stores::TestStore;

use crate::support::{NOBODY, ok, refusal, refused, text, texts};

waybill_testkit::both! {
    a_key_belongs_to_its_makers_tenant_and_only_its_hash_is_stored,
    an_operator_makes_keys_for_a_tenant_by_name_or_id,
    nobody_else_may_name_a_tenant,
    keys_of_the_servers_own_kind_are_made_by_operators_alone,
    a_principal_that_looks_like_another_gets_no_key_and_one_of_before_keeps_its_own,
    what_makes_no_key_is_refused_and_nothing_written,
    an_admin_whose_key_is_older_than_a_scope_still_makes_keys,
    a_narrowed_key_makes_none_that_is_wider_than_itself,
}

async fn a_key_belongs_to_its_makers_tenant_and_only_its_hash_is_stored(on: TestStore) {
    let other = on.tenant("other").await.unwrap();
    let made = ok(&on, &other, "create_key", json!({ "principal": "agent:ada", "expires_in_seconds": 60 })).await;
    assert_eq!((&made["principal"], &made["roles"]), (&json!("agent:ada"), &json!(["agent"])));
    let rows = on
        .rows_with(
            "SELECT k.tenant, k.principal, k.created_by, k.expires_at - k.created_at, k.revoked_at, k.replaced_by, k.hash,
             k.roles, k.scopes FROM api_keys k WHERE k.key_id = $1",
            &[&text(&made, "key_id")],
        )
        .await
        .unwrap();
    let row = &rows[0];
    assert_eq!(row.int(0).unwrap(), other.tenant.0);
    assert_eq!((row.text(1).unwrap(), row.text(2).unwrap()), ("agent:ada", "human:admin"));
    assert_eq!((row.int(3).unwrap(), row.int_opt(4).unwrap()), (60_000_000, None));
    assert_eq!(row.text_opt(5).unwrap(), None);
    let (key, hash) = (text(&made, "key"), row.text(6).unwrap());
    assert!(hash.starts_with("$argon2id$") && key.starts_with("aga_"));
    assert!(!format!("{row:?}").contains(&key[16..48]), "the secret is in the database");
    assert_eq!(row.text(7).unwrap(), "agent");
    assert_eq!(row.text(8).unwrap(), "tasks:read,tasks:write,receipts:read,receipts:ack");
}

async fn a_narrowed_key_makes_none_that_is_wider_than_itself(on: TestStore) {
    let narrow = Caller { scopes: Scopes::new([Scope::AdminWrite, Scope::TasksLease]), ..on.admin.clone() };
    let before = on.count("SELECT count(*) FROM api_keys").await.unwrap();
    for wide in [json!({ "principal": "human:me", "role": "admin" }), json!({ "principal": "agent:ada" })] {
        let error = refused(&on, &narrow, "create_key", wide).await;
        assert_eq!(error.code(), Code::Forbidden);
        assert!(error.to_json()["required_scope"].as_str().unwrap().contains("receipts:read"), "{error}");
    }
    let wide = ok(&on, &on.admin, "create_key", json!({ "principal": "agent:ada" })).await;
    let rotate = json!({ "key_id": wide["key_id"] });
    assert_eq!(refusal(&on, &narrow, "rotate_key", rotate).await, Code::Forbidden);
    assert_eq!(on.count("SELECT count(*) FROM api_keys").await.unwrap(), before + 1);
    let within = json!({ "principal": "worker:w", "scopes": ["tasks:lease"] });
    ok(&on, &narrow, "create_key", within).await;
}

/// Its row names the scopes that there were when it was made.
async fn an_admin_whose_key_is_older_than_a_scope_still_makes_keys(on: TestStore) {
    let older = Scope::ALL.iter().copied().filter(|scope| !Scope::LATER.contains(scope));
    let older = Caller { scopes: Scopes::new(older), ..on.admin.clone() };
    for role in ["admin", "agent"] {
        let made = ok(&on, &older, "create_key", json!({ "principal": "human:me", "role": role })).await;
        assert!(!made["scopes"].to_string().contains("queues:"), "{made}");
    }
    let named = json!({ "principal": "agent:ada", "scopes": ["queues:send"] });
    assert_eq!(refusal(&on, &older, "create_key", named.clone()).await, Code::Forbidden);
    ok(&on, &on.admin, "create_key", named).await;
}

async fn an_operator_makes_keys_for_a_tenant_by_name_or_id(on: TestStore) {
    let other = on.tenant("other").await.unwrap();
    for named in ["other".to_owned(), other.tenant_id.to_string()] {
        let made = ok(&on, &on.admin, "create_key", json!({ "principal": "human:h", "tenant": named })).await;
        let sql = "SELECT tenant FROM api_keys WHERE key_id = $1";
        let rows = on.rows_with(sql, &[&text(&made, "key_id")]).await.unwrap();
        assert_eq!(rows[0].int(0).unwrap(), other.tenant.0);
    }
    for unknown in ["nobody", NOBODY] {
        let input = json!({ "principal": "human:h", "tenant": unknown });
        assert_eq!(refusal(&on, &on.admin, "create_key", input).await, Code::NotFound);
    }
}

async fn nobody_else_may_name_a_tenant(on: TestStore) {
    let other = on.tenant("other").await.unwrap();
    // The same answer for one that exists, one's own and none: it is no way to ask which tenants there are.
    let mut answers = Vec::new();
    for named in ["default", "other", "nobody"] {
        let error = refused(&on, &other, "create_key", json!({ "principal": "human:h", "tenant": named })).await;
        assert_eq!(error.code(), Code::Forbidden);
        answers.push(error.to_json());
    }
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]));
}

async fn keys_of_the_servers_own_kind_are_made_by_operators_alone(on: TestStore) {
    let other = on.tenant("other").await.unwrap();
    for principal in ["system:asyncgate", "asyncgate:asyncgate", "system:cron"] {
        for input in [json!({ "principal": principal }), json!({ "principal": principal, "role": "agent" })] {
            assert_eq!(refusal(&on, &other, "create_key", input.clone()).await, Code::Forbidden, "{input}");
            ok(&on, &on.admin, "create_key", input.clone()).await;
        }
    }
    let theirs = json!({ "principal": "system:cron", "tenant": "other" });
    let key_id = ok(&on, &on.admin, "create_key", theirs).await["key_id"].clone();
    // What an operator has made for the tenant, its admin may renew.
    ok(&on, &other, "rotate_key", json!({ "key_id": key_id })).await;
    ok(&on, &other, "create_key", json!({ "principal": "service:system", "role": "system" })).await;
}

async fn a_principal_that_looks_like_another_gets_no_key_and_one_of_before_keeps_its_own(on: TestStore) {
    let odd = ["agent:ada\u{200B}", "agent:\u{202E}ada", " agent:ada", "agent: ada", "agent:ada ", "agent:a\u{2009}da"];
    for principal in odd {
        let input = json!({ "principal": principal });
        assert_eq!(refusal(&on, &on.admin, "create_key", input).await, Code::InvalidRequest, "{principal:?}");
    }
    let told = refused(&on, &on.admin, "create_key", json!({ "principal": odd[0] })).await;
    assert!(told.message().contains("U+200B"), "{told}");
    for principal in ["human:Ünsal Ä", "agent:李小龙", "agent:مريم"] {
        ok(&on, &on.admin, "create_key", json!({ "principal": principal })).await;
    }
    on.write(&format!("UPDATE api_keys SET principal = '{}'", odd[0])).await.unwrap();
    let listed = ok(&on, &on.admin, "list_keys", json!({})).await;
    assert!(texts(&listed["keys"], "principal").iter().all(|principal| principal == odd[0]), "{listed}");
}

async fn what_makes_no_key_is_refused_and_nothing_written(on: TestStore) {
    let before = on.count("SELECT count(*) FROM api_keys").await.unwrap();
    for wrong in [
        json!({}),
        json!({ "principal": "alice" }),
        json!({ "principal": "agent:a\u{0}" }),
        json!({ "principal": "agent:a", "role": "king" }),
        json!({ "principal": "agent:a", "role": "agent", "roles": ["agent"] }),
        json!({ "principal": "agent:a", "roles": [] }),
        json!({ "principal": "agent:a", "scopes": [] }),
        json!({ "principal": "agent:a", "expires_in_seconds": 0 }),
        json!({ "principal": "agent:a", "expires_in_seconds": 315_360_001 }),
        json!({ "principal": "agent:a", "minted": null }),
    ] {
        assert_eq!(refusal(&on, &on.admin, "create_key", wrong.clone()).await, Code::InvalidRequest, "{wrong}");
    }
    let named = json!({ "principal": "agent:a", "tenant": "a\u{0}b" });
    assert_eq!(refusal(&on, &on.admin, "create_key", named).await, Code::InvalidRequest);
    assert_eq!(on.count("SELECT count(*) FROM api_keys").await.unwrap(), before);
}
