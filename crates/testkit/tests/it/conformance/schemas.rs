//! One migration text, two schemas: the same tables, columns and indexes. Only full text is kept by each engine in its own way.

use std::collections::BTreeSet;

use waybill_testkit::stores::{self, TestStore};

type Facts = BTreeSet<String>;

async fn sqlite_facts(on: &TestStore) -> Facts {
    let columns = "SELECT m.name || '.' || c.name || ' ' ||
            CASE c.type WHEN 'INTEGER' THEN 'bigint' WHEN 'BLOB' THEN 'bytea' ELSE lower(c.type) END ||
            CASE WHEN c.\"notnull\" = 1 OR c.pk > 0 THEN ' not null' ELSE '' END ||
            CASE WHEN c.dflt_value IS NULL THEN '' ELSE ' default' END
        FROM sqlite_master m JOIN pragma_table_info(m.name) c WHERE m.type = 'table'
            AND m.name NOT LIKE 'sqlite%' AND m.name NOT LIKE 'refinery%' AND m.name NOT LIKE 'mail_fts%'";
    let keys = "SELECT name || ' key ' || (SELECT group_concat(name, ',') FROM (
            SELECT c.name FROM pragma_table_info(m.name) c WHERE c.pk > 0 ORDER BY c.pk))
        FROM sqlite_master m WHERE type = 'table' AND name NOT LIKE 'sqlite%' AND name NOT LIKE 'refinery%'
            AND name NOT LIKE 'mail_fts%'";
    let indexes = "SELECT m.tbl_name || ' ' || i.name || ' ' || (SELECT group_concat(name, ',') FROM (
            SELECT c.name FROM pragma_index_info(i.name) c ORDER BY c.seqno)) ||
            CASE i.\"unique\" WHEN 1 THEN ' unique' ELSE '' END || CASE i.partial WHEN 1
                THEN ' where ' || lower(trim(substr(m.sql, instr(m.sql, ' WHERE ') + 7))) ELSE '' END
        FROM sqlite_master m JOIN pragma_index_list(m.tbl_name) i ON i.name = m.name WHERE m.type = 'index'
            AND i.origin = 'c'";
    let mut facts = Facts::new();
    for sql in [columns, keys, indexes] {
        facts.extend(on.rows(sql).await.unwrap().iter().map(|row| row.text(0).unwrap().to_owned()));
    }
    facts
}

/// As the superuser: the information schema hides what its reader may not touch.
async fn postgres_facts(on: &TestStore) -> Facts {
    let columns = "SELECT table_name || '.' || column_name || ' ' || data_type ||
            CASE is_nullable WHEN 'NO' THEN ' not null' ELSE '' END ||
            CASE WHEN column_default IS NULL THEN '' ELSE ' default' END
        FROM information_schema.columns WHERE table_schema = 'public' AND table_name NOT LIKE 'refinery%'
            AND table_name <> 'mail_search'";
    let indexes = "SELECT t.relname || ' ' || CASE WHEN x.indisprimary THEN 'key' ELSE i.relname END || ' ' ||
            (SELECT string_agg(a.attname, ',' ORDER BY k.nth) FROM unnest(x.indkey) WITH ORDINALITY AS k (number, nth)
                JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = k.number) ||
            CASE WHEN x.indisunique AND NOT x.indisprimary THEN ' unique' ELSE '' END ||
            coalesce(' where ' || replace(replace(lower(trim('()' FROM pg_get_expr(x.indpred, t.oid))), '::text', ''), ') and (', ' and '), '')
        FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid
            JOIN pg_namespace n ON n.oid = t.relnamespace
        WHERE n.nspname = 'public' AND t.relname NOT LIKE 'refinery%' AND t.relname <> 'mail_search'";
    let client = on.database().unwrap().connect().await.unwrap();
    let mut facts = Facts::new();
    for sql in [columns, indexes] {
        facts.extend(client.query(sql, &[]).await.unwrap().iter().map(|row| row.get::<_, String>(0)));
    }
    facts
}

#[tokio::test]
async fn both_engines_have_the_same_tables_columns_and_indexes() {
    let (sqlite, postgres) = (stores::open_sqlite().await.unwrap(), stores::open_postgres().await.unwrap());
    let (sqlite, postgres) = (sqlite_facts(&sqlite).await, postgres_facts(&postgres).await);
    let only = |one: &Facts, other: &Facts| one.difference(other).cloned().collect::<Vec<_>>();
    // SQLite's rows are in the order of their seq as they are.
    let in_order = "receipts receipts_in_order xact,seq".to_owned();
    let by_number = "receipts key seq".to_owned();
    assert_eq!((only(&sqlite, &postgres), only(&postgres, &sqlite)), (vec![by_number], vec![in_order]));
    // The comparison has something to compare.
    for fact in [
        "tasks.task_id bytea not null",
        "tasks.idempotency_key text",
        "receipts.xact bigint not null default",
        "receipts key seq",
        "tasks key tenant,task_id",
        "tasks tasks_by_key tenant,owner,idempotency_key unique where idempotency_key is not null",
        "receipts receipts_open tenant,addressee,xact,seq where open = 1",
        "receipts receipts_of_schedules tenant,task_id where schedule_id is not null",
    ] {
        assert!(sqlite.contains(fact), "{fact} is missing from {sqlite:#?}");
    }
}

#[tokio::test]
async fn a_text_of_postgres_has_the_collation_of_its_bytes() {
    let on = stores::open_postgres().await.unwrap();
    let client = on.database().unwrap().connect().await.unwrap();
    let sql = "SELECT table_name || '.' || column_name FROM information_schema.columns WHERE table_schema = 'public' \
               AND data_type = 'text' AND collation_name IS DISTINCT FROM 'C' AND table_name NOT LIKE 'refinery%'";
    let other: Vec<String> = client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(other, Vec::<String>::new());
}
