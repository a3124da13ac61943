//! One migration text for both engines.
//!
//! | written | SQLite | PostgreSQL |
//! |---|---|---|
//! | `BIGINT`, `TEXT`, `BYTEA` | `INTEGER`, `TEXT`, `BLOB` | `BIGINT`, `TEXT COLLATE "C"`, `BYTEA` |
//! | `{id}` | `INTEGER PRIMARY KEY` | `BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY` |
//! | `{rowid}` | `INTEGER PRIMARY KEY` | `BIGINT PRIMARY KEY`: a number that the program gives |
//! | `{xact}` | `0` | the transaction's xid8, as a number: feeds order by it |
//! | `{postgres}` before a statement | left out | the statement |
//! | `{sqlite}` before a statement | the statement | left out |
//! | end of `CREATE TABLE` | `STRICT`; `WITHOUT ROWID` where the table has neither `{id}` nor `{rowid}` | row-level security where it has a tenant |
//!
//! A table with a `tenant` column is a tenant's table: PostgreSQL gets ENABLE and FORCE ROW LEVEL SECURITY and its policies in
//! the same migration, so no table exists for a moment without them.

use std::fmt::Write;

use waybill_kernel::{Code, Error, Result};

use crate::lexer::{Piece, pieces};
use crate::tenant_check::TenantTables;

/// refinery's own table, absent before the first migration.
pub(crate) const HISTORY: &str = "refinery_schema_history";
/// The role that transactions of a tenant run as: sees the rows of `app.tenant_id` and no others.
pub(crate) const ROLE_APP: &str = "waybill_app";
/// The role of authentication and sweeps: sees every row, and names the tenant in every statement.
pub(crate) const ROLE_SYSTEM: &str = "waybill_system";

/// Between the login and those two: lets it become either and inherits from neither.
pub(crate) const ROLE_LOGIN: &str = "waybill_login";

/// What to do when a step fails: each is one transaction, so nothing of it is left.
pub(crate) const WAY_BACK: &str =
    "Start the version from before, which finds its schema as it was, and report the message.";

#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// Unique over all domains and ascending: the order in which they run.
    pub version: i32,
    pub name: &'static str,
    pub sql: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Sqlite,
    Postgres,
}

/// # Panics
/// When two migrations share a version: no order could be right.
pub(crate) fn ordered(migrations: &[Migration]) -> Vec<Migration> {
    let mut ordered = migrations.to_vec();
    ordered.sort_by_key(|migration| migration.version);
    assert!(
        ordered.windows(2).all(|pair| pair[0].version < pair[1].version),
        "two migrations have the same version: {ordered:?}"
    );
    ordered
}

pub(crate) fn for_refinery(migrations: &[Migration], engine: Engine) -> Result<Vec<refinery::Migration>> {
    ordered(migrations)
        .iter()
        .map(|migration| {
            let name = format!("V{}__{}", migration.version, migration.name);
            refinery::Migration::unapplied(&name, &render(migration.sql, engine)).map_err(Error::internal)
        })
        .collect()
}

/// Refuses a database that has seen migrations this program does not know.
pub(crate) fn refuse_newer(applied: &[refinery::Migration], known: &[Migration]) -> Result<()> {
    let newest = known.iter().map(|migration| migration.version).max().unwrap_or(0);
    match applied.iter().map(refinery::Migration::version).max() {
        Some(version) if i64::from(version) > i64::from(newest) => Err(Error::new(
            Code::SchemaTooNew,
            format!("The database has schema {version}; this program knows schemas up to {newest}."),
        )),
        _ => Ok(()),
    }
}

pub(crate) fn tenant_tables(migrations: &[Migration]) -> TenantTables {
    let statements: Vec<_> = migrations.iter().flat_map(|migration| statements(migration.sql)).collect();
    let tables = statements.iter().filter_map(|statement| created_table(marked(statement).1));
    TenantTables::new(tables.filter(|table| table.has_tenant).map(|table| table.name.to_owned()))
}

/// The text one engine runs.
pub fn render(sql: &str, engine: Engine) -> String {
    let mut text = String::new();
    for statement in statements(sql) {
        let Some(statement) = for_engine(&statement, engine) else { continue };
        let table = created_table(statement);
        let mapped = map_types(statement, engine);
        let _ = match engine {
            Engine::Sqlite => writeln!(text, "{mapped}{};", table.as_ref().map_or("", Table::sqlite_suffix)),
            Engine::Postgres => writeln!(text, "{mapped};"),
        };
        if let (Engine::Postgres, Some(table)) = (engine, table) {
            text.push_str(&table.postgres_access());
        }
    }
    text
}

struct Table<'a> {
    name: &'a str,
    has_tenant: bool,
    has_rowid: bool,
}

impl Table<'_> {
    const fn sqlite_suffix(&self) -> &'static str {
        if self.has_rowid { " STRICT" } else { " STRICT, WITHOUT ROWID" }
    }

    fn postgres_access(&self) -> String {
        let name = self.name;
        let mut text = format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO {ROLE_SYSTEM};\n");
        if !self.has_tenant {
            return text;
        }
        // An unset or reset setting is '' and becomes NULL: no rows, rather than an exception or everybody's rows.
        let own = "tenant = nullif(current_setting('app.tenant_id', true), '')::bigint";
        let _ = writeln!(
            text,
            "GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO {ROLE_APP};\n\
             ALTER TABLE {name} ENABLE ROW LEVEL SECURITY;\n\
             ALTER TABLE {name} FORCE ROW LEVEL SECURITY;\n\
             CREATE POLICY tenant_rows ON {name} TO {ROLE_APP} USING ({own}) WITH CHECK ({own});\n\
             CREATE POLICY system_rows ON {name} TO {ROLE_SYSTEM} USING (true) WITH CHECK (true);"
        );
        text
    }
}

/// Statements without their comments. A semicolon inside a string, such as the body of a function, ends none.
fn statements(sql: &str) -> Vec<String> {
    let code: String = pieces(sql).filter(|piece| !matches!(piece, Piece::Comment(_))).map(Piece::text).collect();
    let bare = code.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    let mut statements = vec![String::new()];
    for piece in pieces(&bare) {
        let is_code = matches!(piece, Piece::Code(_));
        for (number, part) in piece.text().split(|c| is_code && c == ';').enumerate() {
            if number > 0 {
                statements.push(String::new());
            }
            if let Some(last) = statements.last_mut() {
                last.push_str(part);
            }
        }
    }
    statements.iter().map(|statement| statement.trim().to_owned()).filter(|statement| !statement.is_empty()).collect()
}

/// None for a statement of the other engine: an index that SQLite has no use for, because the rows are in that order anyway, or
/// a table for full text, which each engine has in its own words.
fn for_engine(statement: &str, engine: Engine) -> Option<&str> {
    let (only, statement) = marked(statement);
    only.is_none_or(|only| only == engine).then_some(statement)
}

/// Which engine a statement is for, if not for both, and the statement.
fn marked(statement: &str) -> (Option<Engine>, &str) {
    let marks = [("{postgres}", Engine::Postgres), ("{sqlite}", Engine::Sqlite)];
    let own = marks.iter().find_map(|(mark, engine)| Some((Some(*engine), statement.strip_prefix(mark)?.trim_start())));
    own.unwrap_or((None, statement))
}

fn created_table(statement: &str) -> Option<Table<'_>> {
    let rest = statement.strip_prefix("CREATE TABLE ")?;
    let (name, columns) = rest.split_once('(')?;
    let has_tenant = columns.lines().any(|line| line.trim_start().starts_with("tenant "));
    Some(Table { name: name.trim(), has_tenant, has_rowid: columns.contains("{id}") || columns.contains("{rowid}") })
}

fn map_types(statement: &str, engine: Engine) -> String {
    match engine {
        Engine::Sqlite => statement
            .replace("{id}", "INTEGER PRIMARY KEY")
            .replace("{rowid}", "INTEGER PRIMARY KEY")
            .replace("{xact}", "0")
            .replace("BIGINT", "INTEGER")
            .replace("BYTEA", "BLOB"),
        Engine::Postgres => statement
            .replace("{id}", "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY")
            .replace("{rowid}", "BIGINT PRIMARY KEY")
            .replace("{xact}", "(pg_current_xact_id()::text::bigint)")
            .replace(" TEXT", " TEXT COLLATE \"C\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SQL: &str = "-- why; no\nCREATE TABLE notes (\n    seq {id}, -- it's a place\n    tenant BIGINT NOT NULL,\n    \
                       body TEXT NOT NULL,\n    hash BYTEA,\n    xact BIGINT NOT NULL DEFAULT {xact}\n);\n\
                       CREATE INDEX notes_by_tenant ON notes (tenant, seq);";

    #[test]
    fn sqlite_gets_strict_tables_of_its_own_types() {
        let text = render(SQL, Engine::Sqlite);
        assert!(text.contains("seq INTEGER PRIMARY KEY,"), "{text}");
        assert!(text.contains("hash BLOB,") && text.contains("DEFAULT 0"), "{text}");
        assert!(text.contains(") STRICT;") && !text.contains("--"), "{text}");
    }

    #[test]
    fn a_rowid_is_given_by_the_program() {
        let sql = "CREATE TABLE notes (\n    number {rowid},\n    tenant BIGINT NOT NULL\n);";
        assert!(
            render(sql, Engine::Sqlite).contains("number INTEGER PRIMARY KEY,\n    tenant INTEGER NOT NULL\n) STRICT;")
        );
        assert!(render(sql, Engine::Postgres).contains("number BIGINT PRIMARY KEY,"));
    }

    #[test]
    fn what_is_for_postgres_alone_stays_out_of_sqlite() {
        let sql = "CREATE INDEX a ON t (x);\n{postgres} CREATE INDEX b ON t (y);";
        assert_eq!(render(sql, Engine::Sqlite), "CREATE INDEX a ON t (x);\n");
        assert_eq!(render(sql, Engine::Postgres), "CREATE INDEX a ON t (x);\nCREATE INDEX b ON t (y);\n");
    }

    #[test]
    fn what_is_for_one_engine_alone_is_still_a_tenants_table() {
        let sql = "{sqlite} CREATE VIRTUAL TABLE found USING fts5 (words);\n\
                   {postgres} CREATE TABLE found (\n  tenant BIGINT NOT NULL,\n  words TSVECTOR\n);";
        assert_eq!(render(sql, Engine::Sqlite), "CREATE VIRTUAL TABLE found USING fts5 (words);\n");
        let text = render(sql, Engine::Postgres);
        assert!(text.starts_with("CREATE TABLE found") && text.contains("FORCE ROW LEVEL SECURITY"), "{text}");
        let migration = Migration { version: 1, name: "found", sql };
        assert!(tenant_tables(&[migration]).check("SELECT words FROM found").is_err());
    }

    #[test]
    fn a_semicolon_in_a_string_or_a_function_ends_no_statement() {
        let sql = "-- a; b\nINSERT INTO t VALUES ('x; -- y');\n{postgres} CREATE FUNCTION f() AS $$\nBEGIN a; END\n$$;";
        assert_eq!(render(sql, Engine::Sqlite), "INSERT INTO t VALUES ('x; -- y');\n");
        assert!(render(sql, Engine::Postgres).ends_with("CREATE FUNCTION f() AS $$\nBEGIN a; END\n$$;\n"));
    }

    #[test]
    fn a_tenant_table_gets_its_row_level_security_with_the_table() {
        let text = render(SQL, Engine::Postgres);
        for part in ["ENABLE ROW LEVEL SECURITY", "FORCE ROW LEVEL SECURITY", "TEXT COLLATE \"C\"", "WITH CHECK"] {
            assert!(text.contains(part), "{part} is missing from {text}");
        }
        let without = render("CREATE TABLE meta (\n  id BIGINT PRIMARY KEY\n);", Engine::Postgres);
        assert!(!without.contains("POLICY") && !without.contains(ROLE_APP));
    }
}
